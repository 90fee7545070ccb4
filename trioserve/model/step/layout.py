"""One step's tokens, laid out flat.

    tokens   | row | row | row | chunk of a prompt | chunk | ...
             one token each     many tokens each

Every attention backend reads this layout. The backend chooses the order of the rows, and
lays out further data for its own operators (backend.py).

The host sends a few numbers for each row and each new token. Data that grow with a
sequence, such as its list of blocks, are put together on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...types.plan import StepPlan, StepRow
from ..device.tensors import send_ids
from .joined_images import JoinedImages
from .slots import SlotTables


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step's tensors on the device.

    Args:
      rows: the step's rows, in the order of the flat tokens.
      input_ids: (1, num_tokens) int64; the ids at sampled_tokens mean nothing yet
      sampled_tokens: (num_sampled,) int64, flat tokens that earlier steps sampled
      sampled_slots: (num_sampled,) int64, their slots
      position_ids: (1, num_tokens) int64, places in the sequence
      slot_ids: (num_tokens,) int64, the slot of each token
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
    input_ids: Tensor
    sampled_tokens: Tensor
    sampled_slots: Tensor
    position_ids: Tensor
    slot_ids: Tensor
    first_tokens: tuple[int, ...]
    last_tokens: tuple[int, ...]
    held: Collection[int] = ()
    adapters: tuple[int, ...] = ()
    key_ends: Tensor | None = None


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
    places = order(plan.rows)
    rows = tuple(plan.rows[i] for i in places)
    ends = list(accumulate(row.num_tokens for row in rows))
    counts = torch.tensor([row.num_tokens for row in rows])
    # A token's position in its sequence minus its place among the flat tokens.
    leads = torch.tensor([row.end - end for row, end in zip(rows, ends)])
    positions = torch.arange(plan.num_tokens) + leads.repeat_interleave(
        counts, output_size=plan.num_tokens
    )
    slots = torch.tensor([row.slot for row in rows]).repeat_interleave(
        counts, output_size=plan.num_tokens
    )
    first_tokens, last_tokens = [0] * len(rows), [0] * len(rows)
    for i, end, row in zip(places, ends, rows):
        first_tokens[i], last_tokens[i] = end - row.num_tokens, end - 1
    sampled = [i for i, row in enumerate(plan.rows) if tables.has_sampled(row)]
    input_ids = tables.token_ids[slots, positions].to(torch.int64)
    key_ends = None if images is None else images.find_ends(rows)
    return StepInputs(
        rows=rows,
        input_ids=input_ids.to(device, non_blocking=True)[None],
        sampled_tokens=send_ids([last_tokens[i] for i in sampled], device),
        sampled_slots=send_ids([plan.rows[i].slot for i in sampled], device),
        position_ids=positions.to(device, non_blocking=True)[None],
        slot_ids=slots.to(device, non_blocking=True),
        first_tokens=tuple(first_tokens),
        last_tokens=tuple(last_tokens),
        held=held,
        adapters=tables.find_adapters(rows),
        key_ends=None if key_ends is None else key_ends.to(device, non_blocking=True),
    )
