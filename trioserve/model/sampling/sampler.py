"""Choose the next token of every row that samples, in one batched pass.

The order is vLLM's: log probabilities come from the raw logits; then bias, plug-ins,
allowed tokens, min_tokens and bad words; penalties; grammars; temperature; min_p; top_k and
top_p. If a sequence has used up its reasoning budget, a token of the end tag replaces the
chosen token.

Nothing here waits for the device. The host may not know the last tokens yet, so all state
that depends on them is kept and updated on the device. Only a plug-in that needs output
tokens waits, and a step with grammars.

If these rules exclude all tokens of a row, its sequence ends with an error (dead_ends.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import le

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ...types.logits import LogitsProcessor
from ...types.plan import SlotStart
from ..device.tensors import send_ids
from ..step.plain import PlainRows
from ..step.scans import Scans, TorchScans
from .bad_words import BadWords
from .choice import Choice, prepare_choice
from .dead_ends import DeadEnds, find_dead_ends, list_exclusions
from .grammars import Grammars, LoadTokenizer, MaskedRows
from .host_copy import copy_to_host
from .launched import Sampled, SampledIds
from .logprobs import LogprobReports
from .operators import SamplingOperators, TorchOperators
from .penalties import PenaltyCounts
from .plain_columns import PlainColumns
from .processors import LogitsProcessors
from .reasoning_budget import ReasoningBudgets


class Sampler:
    """Samples from logits by the parameters of each slot.

    Args:
      scans: by default torch's.
      operators: by default torch's, with these scans.
      load_tokenizer: see Grammars; without it no sequence may have a grammar.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        device: torch.device,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        scans: Scans | None = None,
        operators: SamplingOperators | None = None,
        load_tokenizer: LoadTokenizer | None = None,
    ) -> None:
        self._scans = scans or TorchScans()
        self._operators = operators or TorchOperators(self._scans, device)
        self._vocab_size = vocab_size
        self._device = device
        self._choices: dict[int, Choice] = {}
        self._plain = PlainColumns()
        self._penalties = PenaltyCounts(vocab_size, device)
        self._bad_words = BadWords(vocab_size, device)
        self._reasoning = ReasoningBudgets(device)
        self._grammars = Grammars(load_tokenizer, vocab_size=vocab_size, device=device)
        self._processors = LogitsProcessors(
            logits_processors, vocab_size=vocab_size, device=device
        )

    def start(self, start: SlotStart) -> None:
        """Take the parameters of a sequence, in place of its slot's former one."""
        choice = prepare_choice(start, self._vocab_size, self._device)
        self._choices[start.slot] = choice
        self._plain.start(start.slot, choice)
        self._penalties.start(start)
        self._bad_words.start(start)
        self._reasoning.start(start)
        self._processors.start(start)
        self._grammars.start(start)

    def end(self, slots: Iterable[int]) -> None:
        """Forget the grammars of sequences that have left their slots."""
        self._grammars.end(slots)

    def list_late(
        self, slots: list[int], num_outputs: list[int], *, has_others: bool
    ) -> tuple[int, ...]:
        """Return the rows that `sample` must not have; see Grammars.list_late."""
        if not self._grammars.has_any(slots):
            return ()
        return self._grammars.list_late(slots, num_outputs, has_others=has_others)

    def list_waiting(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Return the slots that will probably be late; see Grammars.list_waiting."""
        return self._grammars.list_waiting(sampled)

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
        masked = is_dead = None
        exclusions = list_exclusions(choices, num_outputs)
        if self._is_plain(slots, choices, num_outputs):
            chosen = self._operators.choose_plain(logits, choices, num_outputs)
        else:
            scores = logits.to(torch.float32, copy=True)
            self._change(scores, slots, choices, num_outputs)
            if self._grammars.has_any(slots):
                masked = self._grammars.mask(scores, slots)
            if exclusions:
                is_dead = find_dead_ends(scores)
            chosen = self._operators.choose(scores, choices, num_outputs)
        self._reasoning.force(slots, chosen)
        sampled = self._report(
            logits, chosen, choices, _check(exclusions, is_dead, masked, chosen)
        )
        self._remember(slots, sampled.ids)
        if masked is not None:
            self._grammars.append(slots, masked.rows, sampled.ids)
        return sampled

    @property
    def is_capturable(self) -> bool:
        """Whether captured steps may choose the tokens that `find_plain` describes."""
        return self._operators.is_capturable

    def find_plain(
        self, slots: NDArray[np.int64], num_outputs: NDArray[np.int64]
    ) -> PlainRows | None:
        """Return the numbers by which rows sample; None if some need more than these.

        Args:
          slots, num_outputs: (num_slots,) int64, as in `sample`
        """
        listed: list[int] = slots.tolist()
        if self._reasoning.has_any(listed) or self._has_more(listed):
            return None
        return self._plain.find(slots, num_outputs)

    def _is_plain(
        self, slots: list[int], choices: list[Choice], num_outputs: list[int]
    ) -> bool:
        """Return whether each row's logits, temperature and rules alone decide."""
        begins = [choice.plain_from for choice in choices]
        return all(map(le, begins, num_outputs)) and not self._has_more(slots)

    def _has_more(self, slots: list[int]) -> bool:
        """Return whether more than the fields of a Choice decide about one of these slots."""
        return (
            self._bad_words.has_any(slots)
            or self._processors.has_any(slots)
            or self._grammars.has_any(slots)
        )

    def _change(
        self,
        scores: Tensor,
        slots: list[int],
        choices: list[Choice],
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

    def _shift(self, scores: Tensor, choices: list[Choice]) -> None:
        for row, choice in enumerate(choices):
            # Tensors are not asked for rows that have none.
            if choice.changes and choice.bias_ids.numel():
                scores[row].index_add_(0, choice.bias_ids, choice.bias)

    def _hold_back(
        self, scores: Tensor, choices: list[Choice], num_outputs: list[int]
    ) -> None:
        for row, (choice, count) in enumerate(zip(choices, num_outputs)):
            if choice.changes and choice.banned_ids.numel():
                scores[row].index_fill_(0, choice.banned_ids, -torch.inf)
            if choice.excluded is not None:
                scores[row].masked_fill_(choice.excluded, -torch.inf)
            if count < choice.stops_from:
                scores[row].index_fill_(0, choice.stop_ids, -torch.inf)

    def _penalize(
        self, scores: Tensor, slots: list[int], choices: list[Choice]
    ) -> None:
        rows = [i for i, choice in enumerate(choices) if choice.has_penalties]
        if rows:
            self._operators.penalize(scores, self._penalties.find(slots, rows))

    def _report(
        self,
        logits: Tensor,
        token_ids: Tensor,
        choices: list[Choice],
        dead_ends: DeadEnds | None,
    ) -> Sampled:
        num_top, named = {}, []
        for row, choice in enumerate(choices):
            if choice.sampling.logprobs is not None:
                ids = choice.sampling.logprob_token_ids
                num_top[row] = 0 if ids else choice.sampling.logprobs
                named.append(ids)
        if not num_top:
            return Sampled(ids=SampledIds(token_ids), dead_ends=dead_ends)
        reported = token_ids
        if len(num_top) < len(choices):
            index = self._make_ids(list(num_top))
            logits, reported = logits[index], token_ids[index]
        return Sampled(
            ids=SampledIds(token_ids),
            dead_ends=dead_ends,
            reported=tuple(num_top),
            reports=LogprobReports(
                logits,
                reported,
                list(num_top.values()),
                self._scans,
                named,
            ),
        )

    def _make_ids(self, values: list[int]) -> Tensor:
        return send_ids(values, self._device)


def _check(
    exclusions: dict[int, list[str]],
    is_dead: Tensor | None,
    masked: MaskedRows | None,
    chosen: Tensor,
) -> DeadEnds | None:
    """Find the rows whose sequences cannot go on."""
    if is_dead is None:
        return None
    if masked is not None:
        masked.note_misfits(is_dead, chosen)
    return DeadEnds(
        exclusions=exclusions,
        is_dead=copy_to_host(is_dead),
        errors={} if masked is None else masked.errors,
    )
