"""Choose the next token of every row that samples, in one batched pass.

The order is vLLM's: log probabilities come from the raw logits; then bias, plug-ins,
min_tokens and bad words; penalties; temperature; min_p; top_k and top_p. If a sequence has
used up its reasoning budget, a token of the end tag replaces the chosen token.

Nothing here waits for the device. The host may not know the last tokens yet, so all state
that depends on them is kept and updated on the device. Only a plug-in that needs output
tokens waits.

If these rules exclude all tokens of a row, the row still gets one: a greedy row the
first token of the vocabulary, as in transformers' generate, and a drawn row any token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.logits import LogitsProcessor
from ...types.plan import SlotStart
from ...types.sampling import SamplingParams
from ..tensors import send_floats, send_ids
from .bad_words import BadWords
from .draw import draw_from_all, draw_from_best, drop_unlikely, make_noise
from .logprobs import LogprobReports
from .penalties import PenaltyCounts, has_penalties
from .processors import LogitsProcessors
from .reasoning_budget import ReasoningBudgets
from .sampled import Sampled, SampledIds
from .scans import Scans, TorchScans

# A division by a smaller temperature overflows: vLLM's _SAMPLING_EPS.
_LOWEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The sampling parameters of a slot, prepared for the device.

    Args:
      bias_ids: (num_biases,) int64
      bias: (num_biases,) float32, added to the logits of bias_ids
      banned_ids: (num_banned,) int64, never sampled: bad words of one token
      stop_ids: (num_stops,) int64, not sampled before min_tokens
      top_k: how many tokens may be sampled; the whole vocabulary if it is off.
      is_greedy: always take the likeliest token.
      is_cut: top_k or top_p excludes some tokens.
    """

    sampling: SamplingParams
    seed: int
    bias_ids: Tensor
    bias: Tensor
    banned_ids: Tensor
    stop_ids: Tensor
    top_k: int
    is_greedy: bool
    is_cut: bool
    has_penalties: bool

    @property
    def way(self) -> tuple[bool, bool]:
        """How a token is chosen: is_greedy; is_cut, if it is drawn."""
        return self.is_greedy, self.is_cut and not self.is_greedy

    def holds_back_stops(self, num_outputs: int) -> bool:
        return num_outputs < self.sampling.min_tokens and len(self.stop_ids) > 0

    def is_argmax(self, num_outputs: int) -> bool:
        """Whether the largest raw logit wins unless it completes a bad word."""
        return (
            self.is_greedy
            and self.sampling.logprobs is None
            and not self.has_penalties
            and not len(self.bias_ids)
            and not len(self.banned_ids)
            and not self.holds_back_stops(num_outputs)
        )


class Sampler:
    """Samples from logits by the parameters of each slot.

    Args:
      scans: by default those of torch.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        device: torch.device,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        scans: Scans | None = None,
    ) -> None:
        self._scans = scans or TorchScans()
        self._vocab_size = vocab_size
        self._device = device
        self._choices: dict[int, _Choice] = {}
        self._penalties = PenaltyCounts(vocab_size, device)
        self._bad_words = BadWords(vocab_size, device)
        self._reasoning = ReasoningBudgets(device)
        self._processors = LogitsProcessors(
            logits_processors, vocab_size=vocab_size, device=device
        )

    def start(self, start: SlotStart) -> None:
        """Take the parameters of a sequence, in place of its slot's former one."""
        sampling = start.sampling
        # Ids outside of the vocabulary can be neither favoured nor sampled.
        bias = [pair for pair in sampling.logit_bias if pair[0] < self._vocab_size]
        banned = [word[0] for word in sampling.bad_words if len(word) == 1]
        stops = [i for i in start.stop_token_ids if 0 <= i < self._vocab_size]
        top_k = sampling.top_k if sampling.top_k > 0 else self._vocab_size
        self._choices[start.slot] = _Choice(
            sampling=sampling,
            seed=start.seed,
            bias_ids=self._make_ids([token_id for token_id, _ in bias]),
            bias=self._make_floats([value for _, value in bias]),
            banned_ids=self._make_ids([i for i in banned if 0 <= i < self._vocab_size]),
            stop_ids=self._make_ids(stops),
            top_k=min(top_k, self._vocab_size),
            is_greedy=sampling.temperature < _LOWEST_TEMPERATURE,
            is_cut=top_k < self._vocab_size or sampling.top_p < 1.0,
            has_penalties=has_penalties(sampling),
        )
        self._penalties.start(start)
        self._bad_words.start(start)
        self._reasoning.start(start)
        self._processors.start(start)

    def sample(
        self, slots: list[int], num_outputs: list[int], logits: Tensor
    ) -> Sampled:
        """Sample one token for each slot.

        Args:
          slots: each at most once.
          num_outputs: output tokens of each slot so far.
          logits: (num_slots, vocab_size); not changed
        """
        choices = [self._choices[slot] for slot in slots]
        if self._takes_best(slots, choices, num_outputs):
            chosen = self._scans.find_best(logits)
        else:
            scores = logits.to(torch.float32, copy=True)
            self._change(scores, slots, choices, num_outputs)
            chosen = self._choose(scores, choices, num_outputs)
        self._reasoning.force(slots, chosen)
        sampled = self._report(logits, chosen, choices)
        self._remember(slots, sampled.ids)
        return sampled

    def _takes_best(
        self, slots: list[int], choices: list[_Choice], num_outputs: list[int]
    ) -> bool:
        """Whether every row gets its likeliest token."""
        return all(
            choice.is_argmax(count) for choice, count in zip(choices, num_outputs)
        ) and not (self._bad_words.has_any(slots) or self._processors.has_any(slots))

    def _change(
        self,
        scores: Tensor,
        slots: list[int],
        choices: list[_Choice],
        num_outputs: list[int],
    ) -> None:
        """Apply, in place, everything that comes before the temperature."""
        self._shift(scores, choices)
        self._processors.apply(scores, slots, num_outputs)
        self._hold_back(scores, choices, num_outputs)
        self._bad_words.ban(scores, slots)
        self._penalize(scores, slots, choices)

    def _remember(self, slots: list[int], ids: SampledIds) -> None:
        self._penalties.count(slots, ids.on_device)
        self._bad_words.append(slots, ids.on_device)
        self._reasoning.append(slots, ids.on_device)
        self._processors.append(slots, ids)

    def _shift(self, scores: Tensor, choices: list[_Choice]) -> None:
        for row, choice in enumerate(choices):
            if len(choice.bias_ids):
                scores[row].index_add_(0, choice.bias_ids, choice.bias)

    def _hold_back(
        self, scores: Tensor, choices: list[_Choice], num_outputs: list[int]
    ) -> None:
        for row, (choice, count) in enumerate(zip(choices, num_outputs)):
            if len(choice.banned_ids):
                scores[row].index_fill_(0, choice.banned_ids, -torch.inf)
            if choice.holds_back_stops(count):
                scores[row].index_fill_(0, choice.stop_ids, -torch.inf)

    def _penalize(
        self, scores: Tensor, slots: list[int], choices: list[_Choice]
    ) -> None:
        rows = [i for i, choice in enumerate(choices) if choice.has_penalties]
        if rows:
            index = self._make_ids(rows)
            scores[index] = self._penalties.penalize(
                scores[index],
                [slots[row] for row in rows],
                [choices[row].sampling for row in rows],
            )

    def _choose(
        self, scores: Tensor, choices: list[_Choice], num_outputs: list[int]
    ) -> Tensor:
        rows_by_way: dict[tuple[bool, bool], list[int]] = {}
        for row, choice in enumerate(choices):
            rows_by_way.setdefault(choice.way, []).append(row)
        if len(rows_by_way) == 1:
            # Most batches end here, and the logits are not copied once more.
            return self._choose_alike(scores, choices, num_outputs)
        token_ids = torch.empty(len(choices), dtype=torch.int64, device=self._device)
        for rows in rows_by_way.values():
            index = self._make_ids(rows)
            token_ids[index] = self._choose_alike(
                scores[index],
                [choices[row] for row in rows],
                [num_outputs[row] for row in rows],
            )
        return token_ids

    def _choose_alike(
        self, scores: Tensor, choices: list[_Choice], num_outputs: list[int]
    ) -> Tensor:
        """Choose for rows of one way; changes scores."""
        is_greedy, is_cut = choices[0].way
        if is_greedy:
            return self._scans.find_best(scores)
        return self._draw(scores, choices, num_outputs, is_cut)

    def _draw(
        self,
        scores: Tensor,
        choices: list[_Choice],
        num_outputs: list[int],
        is_cut: bool,
    ) -> Tensor:
        samplings = [choice.sampling for choice in choices]
        noise = torch.tensor(
            [make_noise(c.seed, n) for c, n in zip(choices, num_outputs)],
            dtype=torch.float64,
        ).to(self._device, non_blocking=True)
        scores /= self._make_floats([s.temperature for s in samplings])[:, None]
        if any(s.min_p > 0.0 for s in samplings):
            scores = drop_unlikely(
                scores, self._make_floats([s.min_p for s in samplings])
            )
        if not is_cut:
            return draw_from_all(scores, noise, self._scans)
        return draw_from_best(
            scores,
            noise,
            self._make_ids([choice.top_k for choice in choices]),
            self._make_floats([s.top_p for s in samplings]),
            self._scans,
        )

    def _report(
        self, logits: Tensor, token_ids: Tensor, choices: list[_Choice]
    ) -> Sampled:
        num_top = {
            row: choice.sampling.logprobs
            for row, choice in enumerate(choices)
            if choice.sampling.logprobs is not None
        }
        if not num_top:
            return Sampled(ids=SampledIds(token_ids))
        index = self._make_ids(list(num_top))
        return Sampled(
            ids=SampledIds(token_ids),
            reported=tuple(num_top),
            reports=LogprobReports(
                logits[index], token_ids[index], list(num_top.values()), self._scans
            ),
        )

    def _make_ids(self, values: list[int]) -> Tensor:
        return send_ids(values, self._device)

    def _make_floats(self, values: list[float]) -> Tensor:
        return send_floats(values, self._device)
