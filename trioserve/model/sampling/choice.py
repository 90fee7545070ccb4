"""The sampling parameters of a slot, prepared for the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.sampling import EACH_RULE, SamplingParams
from ..device.numbers import StepNumbers
from ..device.tensors import send_ids

# More outputs than any sequence has.
NEVER = 2**63 - 1

_PLAIN = SamplingParams()

# The fields besides the temperature that change the probabilities of tokens.
_RULES = EACH_RULE.keys() - {"temperature"}

# The first columns of a slot: its settings, in the order of kernels/triton/draw.py.
SETTINGS = ("temperature", "top_p", "top_k", "way", "min_p")

# A division by a smaller temperature overflows: vLLM's _SAMPLING_EPS.
_LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The sampling parameters of a slot, prepared for the device.

    Args:
      seed: of the sequence, its last 64 bits.
      bias_ids: (num_biases,) int64
      bias: (num_biases,) float32, added to the logits of bias_ids
      banned_ids: (num_banned,) int64, never sampled: bad words of one token
      excluded: (vocab_size,) bool, the tokens that allowed_token_ids does not name; None
        if all are allowed
      stop_ids: (num_stops,) int64, not sampled before min_tokens
      top_k: how many tokens may be sampled; the whole vocabulary if it is off.
      way: the kind of choice: 0 is greedy; 1 draws from all tokens, 2 if is_cut.
      is_greedy: always take the likeliest token.
      is_cut: top_k or top_p excludes some tokens.
      has_rules: more than the temperature changes the probabilities of tokens.
      has_exclusions: a parameter may exclude tokens in any step.
      changes: a parameter changes the logits of some tokens in any step.
      stops_from: number of outputs from which stop_ids are sampled, too.
      plain_from: number of outputs from which the raw logits, the temperature and the rules
        alone decide, unless the next token would complete a bad word; NEVER if they never do.
      columns: the slot's numbers, as plain_columns.py names them.
    """

    sampling: SamplingParams
    seed: int
    bias_ids: Tensor
    bias: Tensor
    banned_ids: Tensor
    excluded: Tensor | None
    stop_ids: Tensor
    top_k: int
    way: int
    is_greedy: bool
    is_cut: bool
    has_rules: bool
    has_penalties: bool
    has_exclusions: bool
    changes: bool
    stops_from: int
    plain_from: int
    columns: tuple[float, ...]

    def list_exclusions(self, num_outputs: int) -> list[str]:
        """Return the fields of the request that may exclude tokens in a step."""
        sampling = self.sampling
        fields = {
            "allowed_token_ids": sampling.allowed_token_ids,
            "bad_words": sampling.bad_words,
            "min_tokens": num_outputs < self.stops_from,
        }
        names = [name for name, value in fields.items() if value]
        names += [f"logits_processors.{name}" for name, _ in sampling.logits_processors]
        if sampling.grammar is not None:
            names.insert(0, sampling.grammar.param)
        return names


def prepare_choice(start: SlotStart, vocab_size: int, device: torch.device) -> Choice:
    """Send the parameters of a sequence to the device."""
    sampling = start.sampling
    # Ids outside of the vocabulary can be neither favoured nor sampled.
    bias = [pair for pair in sampling.logit_bias if pair[0] < vocab_size]
    banned = [word[0] for word in sampling.bad_words if len(word) == 1]
    stops = [i for i in start.stop_token_ids if 0 <= i < vocab_size]
    top_k = min(sampling.top_k if sampling.top_k > 0 else vocab_size, vocab_size)
    is_greedy = sampling.temperature < _LOWEST_TEMPERATURE
    is_cut = top_k < vocab_size or sampling.top_p < 1.0
    numbers = StepNumbers(device)
    sent = [
        numbers.add(np.array(values, dtype=dtype))
        for values, dtype in (
            ([token_id for token_id, _ in bias], np.int64),
            ([value for _, value in bias], np.float32),
            ([i for i in banned if 0 <= i < vocab_size], np.int64),
            (stops, np.int64),
        )
    ]
    stops_from = sampling.min_tokens if stops else 0
    changes = bool(sampling.allowed_token_ids or bias or banned)
    plain_from = NEVER if changes or has_penalties(sampling) else stops_from
    temperature = 0.0 if is_greedy else sampling.temperature
    has_rules = not is_greedy and _has_rules(sampling)
    way, seed = 0 if is_greedy else 1 + is_cut, start.seed % 2**64
    return Choice(
        sampling=sampling,
        seed=seed,
        bias_ids=sent[0].get(),
        bias=sent[1].get(),
        banned_ids=sent[2].get(),
        excluded=_exclude_others(sampling.allowed_token_ids, vocab_size, device),
        stop_ids=sent[3].get(),
        top_k=top_k,
        way=way,
        is_greedy=is_greedy,
        is_cut=is_cut,
        has_rules=has_rules,
        has_penalties=has_penalties(sampling),
        has_exclusions=bool(
            sampling.allowed_token_ids
            or sampling.bad_words
            or sampling.logits_processors
            or sampling.grammar
        ),
        changes=changes,
        stops_from=stops_from,
        plain_from=plain_from,
        columns=(
            *(temperature, sampling.top_p, top_k, way, sampling.min_p, has_rules, seed),
            # Captured steps keep no logits.
            plain_from if sampling.logprobs is None else NEVER,
        ),
    )


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _has_rules(sampling: SamplingParams) -> bool:
    """Return whether more than the temperature changes the probabilities of tokens."""
    return any(getattr(sampling, name) != getattr(_PLAIN, name) for name in _RULES)


def _exclude_others(
    allowed: tuple[int, ...], vocab_size: int, device: torch.device
) -> Tensor | None:
    """Return the tokens that are not allowed; None if all are."""
    if not allowed:
        return None
    excluded = torch.ones(vocab_size, dtype=torch.bool, device=device)
    return excluded.index_fill_(0, send_ids(allowed, device), False)
