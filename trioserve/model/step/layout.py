"""One step's tokens, laid out flat.

    tokens   | row | row | row | chunk of a prompt | chunk | ...
             one token each     many tokens each

Every attention backend reads this layout. The backend chooses the order of the rows, and
lays out further data for its own operators (backend.py).

The host sends a few numbers for each row and each new token. Data that grow with a
sequence, such as its list of blocks, are put together on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ...types.adapter import NO_ADAPTER
from ...types.plan import StepPlan, StepRow
from ..device.numbers import Sent, StepNumbers
from .joined_images import JoinedImages
from .slots import SlotTables

# In place of a token that an earlier step sampled, and the host may not know yet.
SAMPLED = -1


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """The numbers of one step; on the device they are from the first time that somebody asks.

    Args:
      rows: the step's rows, in the order of the flat tokens.
      tokens: (num_tokens,) int64, ids; SAMPLED where last_token_ids has it
      positions: (num_tokens,) int64, places in the sequence
      slots: (num_tokens,) int64, the slot of each token
      last_token_ids: as in SlotTables.
      numbers: sends them, and what others add, to the device.
      first_tokens: for each row of the plan, in the plan's order, the flat index of its
        first token.
      last_tokens: the same of its last token.
      held: slots whose rows are skipped. The last token of such a row comes again in a
        later step, so states must stay as they are before it.
      adapters: the numbers of the rows' adapters; empty if no row has one.
      key_ends: (num_tokens,) int32, as JoinedImages.find_ends returns them; None if no token
        lies in an image whose tokens see each other
    """

    rows: tuple[StepRow, ...]
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    last_token_ids: Tensor
    numbers: StepNumbers
    first_tokens: tuple[int, ...]
    last_tokens: tuple[int, ...]
    held: Collection[int] = ()
    adapters: tuple[int, ...] = ()
    key_ends: Tensor | None = None

    @property
    def has_chunks(self) -> bool:
        """True if a row has several tokens."""
        return len(self.rows) < len(self.tokens)

    @property
    def counts(self) -> list[int]:
        """The number of tokens of each row."""
        return [row.num_tokens for row in self.rows]

    @cached_property
    def input_ids(self) -> Tensor:
        """(1, num_tokens) int64, on the device, ids of the tokens."""
        token_ids, slot_ids = self._sent[0].get(), self.slot_ids
        if (self.tokens == SAMPLED).any():
            sampled = self.last_token_ids.index_select(0, slot_ids)
            token_ids = torch.where(token_ids == SAMPLED, sampled, token_ids)
        return token_ids[None]

    @property
    def position_ids(self) -> Tensor:
        """(1, num_tokens) int64, on the device, places in the sequence."""
        return self._sent[1].get()[None]

    @property
    def slot_ids(self) -> Tensor:
        """(num_tokens,) int64, on the device, the slot of each token."""
        return self._sent[2].get()

    @cached_property
    def _sent(self) -> tuple[Sent, Sent, Sent]:
        add = self.numbers.add
        return add(self.tokens), add(self.positions), add(self.slots)


def list_runs(
    adapters: Iterable[int], counts: Iterable[int]
) -> Iterator[tuple[int, int, int]]:
    """List the tokens that have the same adapter and follow each other.

    Args:
      adapters: numbers.
      counts: tokens of each, in the order of the tokens.

    Yields:
      numbers of adapters, the first token, and the one behind the last
    """
    end = 0
    for number, group in groupby(zip(adapters, counts), itemgetter(0)):
        begin, end = end, end + sum(count for _, count in group)
        if number != NO_ADAPTER:
            yield number, begin, end


def lay_out(
    plan: StepPlan,
    tables: SlotTables,
    order: Callable[[Sequence[StepRow]], list[int]],
    device: torch.device,
    held: Collection[int] = (),
    images: JoinedImages | None = None,
) -> StepInputs:
    """Lay one step's tokens out flat.

    Args:
      plan: the step; its new blocks are in `tables` already.
      tables: the tokens and the blocks of the slots.
      order: returns the order of rows that the attention backend wants.
      device: the model's.
      held: as in StepInputs.
      images: the images whose tokens see each other; None if layers join none.
    """
    places, rows = order(plan.rows), plan.rows
    is_ordered = places == [*range(len(rows))]
    if not is_ordered:
        rows = tuple([rows[i] for i in places])
    counts = np.array([row.num_tokens for row in rows])
    starts = np.array([row.start for row in rows])
    slots = np.array([row.slot for row in rows])
    ends = counts.cumsum()
    lasts, firsts = ends - 1, ends - counts
    is_sampled = starts + counts > tables.num_tokens[slots]
    if len(rows) < ends[-1]:
        # A token's position in its sequence minus its place among the flat tokens.
        leads = (starts - firsts).repeat(counts)
        positions, slots = np.arange(ends[-1]) + leads, slots.repeat(counts)
    else:
        positions = starts
    tokens = tables.token_ids[slots, positions].astype(np.int64)
    tokens[lasts[is_sampled]] = SAMPLED
    if not is_ordered:
        by_place = np.argsort(places)
        lasts, firsts = lasts[by_place], firsts[by_place]
    key_ends = None if images is None else images.find_ends(rows)
    return StepInputs(
        rows=rows,
        tokens=tokens,
        positions=positions,
        slots=slots,
        last_token_ids=tables.last_token_ids,
        numbers=StepNumbers(device),
        first_tokens=tuple(firsts.tolist()),
        last_tokens=tuple(lasts.tolist()),
        held=held,
        adapters=tables.find_adapters(rows),
        key_ends=None if key_ends is None else key_ends.to(device, non_blocking=True),
    )
