"""The sampling parameters of a slot, prepared for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.plan import SlotStart
from ...types.sampling import SamplingParams
from ..device.tensors import send_floats, send_ids

# A division by a smaller temperature overflows: vLLM's _SAMPLING_EPS.
_LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The sampling parameters of a slot, prepared for the device.

    Args:
      bias_ids: (num_biases,) int64
      bias: (num_biases,) float32, added to the logits of bias_ids
      banned_ids: (num_banned,) int64, never sampled: bad words of one token
      excluded: (vocab_size,) bool, the tokens that allowed_token_ids does not name; None
        if all are allowed
      stop_ids: (num_stops,) int64, not sampled before min_tokens
      top_k: how many tokens may be sampled; the whole vocabulary if it is off.
      is_greedy: always take the likeliest token.
      is_cut: top_k or top_p excludes some tokens.
      has_exclusions: a parameter may exclude tokens in any step.
    """

    sampling: SamplingParams
    seed: int
    bias_ids: Tensor
    bias: Tensor
    banned_ids: Tensor
    excluded: Tensor | None
    stop_ids: Tensor
    top_k: int
    is_greedy: bool
    is_cut: bool
    has_penalties: bool
    has_exclusions: bool

    @property
    def way(self) -> tuple[bool, bool]:
        """The kind of choice: is_greedy; is_cut, if the token is drawn."""
        return self.is_greedy, self.is_cut and not self.is_greedy

    def holds_back_stops(self, num_outputs: int) -> bool:
        return num_outputs < self.sampling.min_tokens and len(self.stop_ids) > 0

    def list_exclusions(self, num_outputs: int) -> list[str]:
        """Return the fields of the request that may exclude tokens in a step."""
        sampling = self.sampling
        fields = {
            "allowed_token_ids": sampling.allowed_token_ids,
            "bad_words": sampling.bad_words,
            "min_tokens": self.holds_back_stops(num_outputs),
        }
        names = [name for name, value in fields.items() if value]
        names += [f"logits_processors.{name}" for name, _ in sampling.logits_processors]
        if sampling.grammar is not None:
            names.insert(0, sampling.grammar.param)
        return names

    def is_argmax(self, num_outputs: int) -> bool:
        """Return whether the largest raw logit wins unless it completes a bad word."""
        return (
            self.is_greedy
            and self.sampling.logprobs is None
            and not self.has_penalties
            and not len(self.bias_ids)
            and not len(self.banned_ids)
            and self.excluded is None
            and not self.holds_back_stops(num_outputs)
        )


def prepare_choice(start: SlotStart, vocab_size: int, device: torch.device) -> Choice:
    """Send the parameters of a sequence to the device."""
    sampling = start.sampling
    # Ids outside of the vocabulary can be neither favoured nor sampled.
    bias = [pair for pair in sampling.logit_bias if pair[0] < vocab_size]
    banned = [word[0] for word in sampling.bad_words if len(word) == 1]
    stops = [i for i in start.stop_token_ids if 0 <= i < vocab_size]
    top_k = sampling.top_k if sampling.top_k > 0 else vocab_size
    return Choice(
        sampling=sampling,
        seed=start.seed,
        bias_ids=send_ids([token_id for token_id, _ in bias], device),
        bias=send_floats([value for _, value in bias], device),
        banned_ids=send_ids([i for i in banned if 0 <= i < vocab_size], device),
        excluded=_exclude_others(sampling.allowed_token_ids, vocab_size, device),
        stop_ids=send_ids(stops, device),
        top_k=min(top_k, vocab_size),
        is_greedy=sampling.temperature < _LOWEST_TEMPERATURE,
        is_cut=top_k < vocab_size or sampling.top_p < 1.0,
        has_penalties=has_penalties(sampling),
        has_exclusions=bool(
            sampling.allowed_token_ids
            or sampling.bad_words
            or sampling.logits_processors
            or sampling.grammar
        ),
    )


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _exclude_others(
    allowed: tuple[int, ...], vocab_size: int, device: torch.device
) -> Tensor | None:
    """Return the tokens that are not allowed; None if all are."""
    if not allowed:
        return None
    excluded = torch.ones(vocab_size, dtype=torch.bool, device=device)
    return excluded.index_fill_(0, send_ids(allowed, device), False)
