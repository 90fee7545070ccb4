"""Keep the tokens of sequences with structured output within their grammars.

Masks are computed in threads (grammar/workers.py) from the moment at which a token is
known, beside the layers of the next step. When that step samples, they are ready, as a
rule. A sequence whose grammar is still being built skips this step: its row has no token, and
the scheduler plans it again. So no other sequence waits long for a new grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...types.plan import SlotStart
from ..tensors import send_ids
from .host_copy import HostCopy

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from ...grammar.guide import Mask
    from ...grammar.workers import GuidedSequence, GuideWorkers, LateIds

LoadTokenizer: TypeAlias = "Callable[[], LLTokenizer]"

# How long a step waits for grammars that are being built. Most take a millisecond or two.
_PATIENCE_SECONDS: Final = 0.002
# If no other sequence samples in the step, it has nothing better to do. Bounded, so that
# new requests can join.
_LONG_PATIENCE_SECONDS: Final = 0.1

_NO_TOKEN: Final = (
    "no token is left that fits the grammar and the other parameters of the request"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredRows:
    """The rows of a step that have grammars.

    Args:
      masked: rows whose tokens fit their grammars, unless no token did.
      postponed: rows without a token, because their grammars are not built yet.
      errors: row -> why its sequence cannot go on.
      misfits: whether the tokens of `masked` do not fit; None if there are none.
    """

    masked: tuple[int, ...] = ()
    postponed: tuple[int, ...] = ()
    errors: dict[int, str] = field(default_factory=dict)
    misfits: HostCopy | None = None

    def read_errors(self) -> dict[int, str]:
        """Wait for the step's tokens, and return all errors by row."""
        if self.misfits is None:
            return self.errors
        misfits = self.misfits.read().tolist()
        return self.errors | {
            row: _NO_TOKEN for row, misfit in zip(self.masked, misfits) if misfit
        }


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

    def start(self, start: SlotStart) -> None:
        """Take the grammar of a sequence, in place of its slot's former one."""
        former = self._sequences.pop(start.slot, None)
        if former is not None:
            former.is_dropped = True
        grammar = start.sampling.grammar
        if grammar is not None:
            self._sequences[start.slot] = self._get_workers().open(
                grammar, start.output_token_ids, start.stop_token_ids
            )

    def has_any(self, slots: Sequence[int]) -> bool:
        """Whether one of these slots has a grammar."""
        return bool(self._sequences) and any(map(self._sequences.__contains__, slots))

    def mask(self, scores: Tensor, slots: Sequence[int]) -> MaskedRows:
        """Exclude, in place, the tokens that do not fit.

        Args:
          scores: (num_slots, vocab_size) float32
        """
        members = {
            row: self._sequences[slot]
            for row, slot in enumerate(slots)
            if slot in self._sequences
        }
        new = [each for each in members.values() if not each.is_built]
        self._wait(list(members.values()), new, has_others=len(new) < len(slots))
        # Once, because threads change the states: a row that is in none of the three groups
        # would be free.
        ready = {row: each for row, each in members.items() if each.is_ready}
        masked = {row: each for row, each in ready.items() if each.error is None}
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
            # Other parameters may have excluded all tokens that fit.
            is_empty=part.amax(dim=-1) == -torch.inf,
            postponed=tuple(row for row in members if row not in ready),
            errors={
                row: each.error for row, each in ready.items() if each.error is not None
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
            self._get_workers().advance(
                [(row, self._sequences[slots[row]]) for row in rows], tokens
            )

    def _wait(
        self,
        members: list[GuidedSequence],
        new: list[GuidedSequence],
        *,
        has_others: bool,
    ) -> None:
        """Wait for masks, and not long for grammars that are being built."""
        workers = self._get_workers()
        if new:
            workers.wait_built(
                new, _PATIENCE_SECONDS if has_others else _LONG_PATIENCE_SECONDS
            )
        workers.wait_ready([each for each in members if each.is_built])

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
      is_empty: (num_rows,) bool, whether no token is left
      postponed, errors: see StructuredRows.
    """

    rows: tuple[int, ...]
    index: Tensor
    excluded: Tensor
    is_empty: Tensor
    postponed: tuple[int, ...]
    errors: dict[int, str]

    def check(self, token_ids: Tensor) -> StructuredRows:
        """Find out whether the sampled tokens fit.

        Args:
          token_ids: (num_slots,) int64, of all rows of the step.
        """
        misfits = None
        if self.rows:
            chosen = token_ids[self.index, None]
            misfits = HostCopy(self.excluded.gather(1, chosen)[:, 0] | self.is_empty)
        return StructuredRows(
            masked=self.rows,
            postponed=self.postponed,
            errors=self.errors,
            misfits=misfits,
        )
