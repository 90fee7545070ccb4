"""Keep the tokens of sequences with structured output within their grammars.

Masks are computed in threads (grammar/workers.py) from the moment at which a token is
known, beside the layers of the next step. When that step samples, they are ready, as a
rule. If a mask is late, the step skips the row: the row has no token, its slot and its guide
stay as they were, and the scheduler plans it again. So no other sequence waits long for a
costly grammar, nor for a new one that is still being built.

The next step may be planned before the host knows of the skipped row. Then it has a row
behind a token that never came, and skips it, too: the guide has read fewer tokens than the
row comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...types.output import SequenceError
from ...types.plan import SlotStart
from ..device.tensors import send_ids

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from ...grammar.guide import GuidedSequence, Mask
    from ...grammar.workers import GuideWorkers, LateIds

LoadTokenizer: TypeAlias = "Callable[[], LLTokenizer]"

# How long a step waits for late masks, and for grammars that are being built: most are built
# within a millisecond or two, and a mask takes 20 to 50 microseconds.
_PATIENCE_SECONDS: Final = 0.002
_PATIENCE_SECONDS_A_ROW: Final = 0.0001
# A step in which no row can go on waits for the first one. Bounded, so that new requests
# can join.
_LONG_PATIENCE_SECONDS: Final = 0.05


class Grammars:
    """The grammars of all slots.

    Args:
      load_tokenizer: makes llguidance's view of the tokenizer; called once, in a thread,
        with the first grammar. None if no sequence may have a grammar.
    """

    def __init__(
        self,
        load_tokenizer: LoadTokenizer | None,
        *,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._load_tokenizer = load_tokenizer
        self._vocab_size = vocab_size
        self._device = device
        # The bits of a byte, the lowest first.
        self._bits = send_ids([1 << i for i in range(8)], device).to(torch.uint8)
        self._workers: GuideWorkers | None = None
        self._sequences: dict[int, GuidedSequence] = {}
        # The last tokens that the guides got to read.
        self._tokens: LateIds | None = None

    def end(self, slots: Iterable[int]) -> None:
        """Forget the grammars of sequences that have left their slots."""
        for slot in slots:
            sequence = self._sequences.pop(slot, None)
            if sequence is not None:
                self._get_workers().drop(sequence)

    def start(self, start: SlotStart) -> None:
        """Take the grammar of a sequence, in place of its slot's former one."""
        self.end((start.slot,))
        grammar = start.sampling.grammar
        if grammar is not None:
            self._sequences[start.slot] = self._get_workers().open(
                grammar, start.output_token_ids, start.stop_token_ids
            )

    def has_any(self, slots: Sequence[int]) -> bool:
        """Return whether one of these slots has a grammar."""
        return bool(self._sequences) and any(map(self._sequences.__contains__, slots))

    def list_late(
        self, slots: Sequence[int], num_outputs: Sequence[int], *, has_others: bool
    ) -> tuple[int, ...]:
        """Wait for masks, and return the rows without one.

        The wait is short if other rows of the step can go on.

        Args:
          num_outputs: output tokens of each slot so far.
          has_others: the step also has rows that do not sample.
        """
        members = self._find_members(slots)
        # The others are behind a token that never came.
        current = {
            row: each
            for row, each in members.items()
            if each.num_tokens == num_outputs[row]
        }
        self._wait(
            list(current.values()), has_others=has_others or len(members) < len(slots)
        )
        return tuple(
            row for row in members if row not in current or not current[row].is_settled
        )

    def list_waiting(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Return the slots that will probably be late in the next step.

        Args:
          sampled: slots whose masks have only begun. These are in time, as a rule.
        """
        return tuple(
            slot
            for slot, sequence in self._sequences.items()
            if not sequence.is_settled
            and (slot not in sampled or self._get_workers().is_costly(sequence.grammar))
        )

    def mask(self, scores: Tensor, slots: Sequence[int]) -> MaskedRows:
        """Exclude, in place, the tokens that do not fit.

        Args:
          scores: (num_slots, vocab_size) float32
          slots: without the slots of late rows.
        """
        members = self._find_members(slots)
        masked = {row: each for row, each in members.items() if each.error is None}
        excluded = self._spread([each.mask for each in masked.values()])
        rows = send_ids(list(masked), self._device)
        part = scores if len(masked) == len(slots) else scores[rows]
        part.masked_fill_(excluded, -torch.inf)
        if part is not scores:
            scores[rows] = part
        return MaskedRows(
            rows=tuple(masked),
            index=rows,
            excluded=excluded,
            errors={
                row: each.error
                for row, each in members.items()
                if each.error is not None
            },
        )

    def append(
        self, slots: Sequence[int], rows: Sequence[int], tokens: LateIds
    ) -> None:
        """Begin to compute the next masks.

        Args:
          rows: the rows that `mask` has masked.
          tokens: one for each slot; they are read in a thread.
        """
        if rows:
            self._tokens = tokens
            self._get_workers().advance(
                [(row, self._sequences[slots[row]]) for row in rows], tokens
            )

    def _find_members(self, slots: Sequence[int]) -> dict[int, GuidedSequence]:
        """Return the sequences with grammars by row."""
        return {
            row: self._sequences[slot]
            for row, slot in enumerate(slots)
            if slot in self._sequences
        }

    def _wait(self, members: list[GuidedSequence], *, has_others: bool) -> None:
        """Wait for masks, but not long if other rows of the step can go on."""
        late = [each for each in members if not each.is_settled]
        if not late:
            return
        if self._tokens is not None:
            # The device may still compute them.
            self._tokens.read()
        workers = self._get_workers()
        if not has_others and len(late) == len(members):
            workers.wait_any(late, _LONG_PATIENCE_SECONDS)
        # The masks of a costly grammar are ready when its rows are planned again.
        quick = [each for each in late if not workers.is_costly(each.grammar)]
        workers.wait_all(
            quick, _PATIENCE_SECONDS + len(quick) * _PATIENCE_SECONDS_A_ROW
        )

    def _spread(self, masks: list[Mask]) -> Tensor:
        """Return the tokens that masks exclude, (num_masks, vocab_size) bool."""
        if not masks:
            return torch.empty((0, self._vocab_size), dtype=torch.bool)
        packed = torch.from_numpy(np.stack(masks).view(np.uint8))
        packed = packed.to(self._device, non_blocking=True)
        excluded = (packed[:, :, None] & self._bits) == 0
        return excluded.view(len(masks), -1)[:, : self._vocab_size]

    def _get_workers(self) -> GuideWorkers:
        if self._workers is None:
            assert self._load_tokenizer is not None, "this device takes grammars"
            # Imported with the first grammar, because most servers never need one.
            from ...grammar.workers import GuideWorkers

            self._workers = GuideWorkers(
                self._load_tokenizer, vocab_size=self._vocab_size
            )
        return self._workers


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """The result of Grammars.mask.

    Args:
      rows, index: the masked rows, on the host and on the device.
      excluded: (num_rows, vocab_size) bool
      errors: row -> why its sequence cannot go on.
    """

    rows: tuple[int, ...]
    index: Tensor
    excluded: Tensor
    errors: dict[int, SequenceError]

    def note_misfits(self, is_dead: Tensor, token_ids: Tensor) -> None:
        """Also set `is_dead` of slots whose tokens do not fit; a forced one may not.

        Args:
          is_dead: (num_slots,) bool, of all rows of the step
          token_ids: (num_slots,) int64
        """
        if self.rows:
            chosen = token_ids[self.index, None]
            is_misfit = self.excluded.gather(1, chosen)[:, 0]
            is_dead[self.index] = is_dead[self.index] | is_misfit
