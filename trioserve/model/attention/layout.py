"""Lay one step's tokens out flat, once for all layers.

    tokens   | decode rows, longest first | chunk | chunk | ...
               one token each               many tokens each

Rows that compute one token are read in *buckets*: slices of rows of about the same
length, whose blocks are gathered together and padded to the longest. Rows that
compute more are *chunks*, each attended to by itself. Layers with a sliding window
read fewer blocks, so each window has buckets and chunks of its own.

What grows with a sequence, its blocks and the masks of its keys, is put together on the
device: the host sends a few numbers for each row and each new token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...types.plan import StepPlan, StepRow
from ..slots import SlotTables
from ..tensors import send_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBucket:
    """Rows [begin, end) of the flat tokens, one token of one sequence each.

    Args:
      block_ids: (num_rows * max_blocks,) int64, gathered in this order
      mask: (num_rows, 1, 1, max_blocks * block_size), added to scores: 0 or -inf
    """

    begin: int
    end: int
    block_ids: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens [begin, end) of the flat tokens, neighbours in one sequence.

    Args:
      block_ids: (num_blocks,) int64; None where the chunk starts its sequence, whose
        keys are then those that the chunk itself brings
      num_keys: keys used of those blocks.
      mask: (num_tokens, num_keys), added to scores: 0 or -inf; None is causal
    """

    begin: int
    end: int
    block_ids: Tensor | None
    num_keys: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """What every layer with the same window reads."""

    buckets: tuple[DecodeBucket, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step's tensors on the device.

    Args:
      input_ids: (1, num_tokens) int64; what stands at sampled_tokens means nothing
      sampled_tokens: (num_sampled,) int64, flat tokens that steps before this one sampled
      sampled_slots: (num_sampled,) int64, the slots of these
      position_ids: (1, num_tokens) int64
      slot_mapping: (num_tokens,) int64, block * block_size + offset
      by_window: what to read, for each window that the model's layers have.
      last_tokens: for each of the plan's rows, the flat index of its last token.
      first_tokens: the same of its first.
    """

    input_ids: Tensor
    sampled_tokens: Tensor
    sampled_slots: Tensor
    position_ids: Tensor
    slot_mapping: Tensor
    by_window: dict[int | None, AttentionLayout]
    first_tokens: tuple[int, ...]
    last_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """What a layout depends on besides the step.

    Args:
      block_size: tokens in one KV block.
      windows: the windows that the model's layers have; None is full attention.
      gather_limit: tokens gathered at once at most, padding included, unless one row
        alone has more.
      explicit_masks: layers that work on scores cannot use a kernel's causal flag.
    """

    block_size: int
    windows: tuple[int | None, ...]
    gather_limit: int
    explicit_masks: bool
    dtype: torch.dtype
    device: torch.device


def lay_out(plan: StepPlan, tables: SlotTables, rules: LayoutRules) -> StepInputs:
    """Lay one step's tokens out flat, the way paged attention reads them.

    Args:
      plan: the step; its new blocks are in `tables` already.
      tables: what the slots hold.
      rules: what else it depends on.

    Source: Kwon et al. 2023 (PagedAttention), section 4.
    """
    order = sorted(range(len(plan.rows)), key=lambda i: _reading_order(plan.rows[i]))
    rows = [plan.rows[i] for i in order]
    ends = list(accumulate(row.num_tokens for row in rows))
    counts = torch.tensor([row.num_tokens for row in rows])
    # How far a row's positions are ahead of its places among the flat tokens.
    leads = torch.tensor([row.end - end for row, end in zip(rows, ends)])
    positions = torch.arange(plan.num_tokens) + leads.repeat_interleave(
        counts, output_size=plan.num_tokens
    )
    slots = torch.tensor([row.slot for row in rows]).repeat_interleave(
        counts, output_size=plan.num_tokens
    )
    first_tokens, last_tokens = [0] * len(rows), [0] * len(rows)
    for i, end, row in zip(order, ends, rows):
        first_tokens[i], last_tokens[i] = end - row.num_tokens, end - 1
    sampled = [i for i, row in enumerate(plan.rows) if tables.has_sampled(row)]
    num_decodes = sum(row.num_tokens == 1 for row in rows)
    input_ids = tables.token_ids[slots, positions].to(torch.int64)
    positions, slots = (
        each.to(rules.device, non_blocking=True) for each in (positions, slots)
    )
    blocks = tables.block_ids[slots, positions // rules.block_size]
    return StepInputs(
        input_ids=input_ids.to(rules.device, non_blocking=True)[None],
        sampled_tokens=send_ids([last_tokens[i] for i in sampled], rules.device),
        sampled_slots=send_ids([plan.rows[i].slot for i in sampled], rules.device),
        position_ids=positions[None],
        slot_mapping=blocks * rules.block_size + positions % rules.block_size,
        by_window={
            window: AttentionLayout(
                buckets=tuple(
                    _lay_out_buckets(rows[:num_decodes], tables, window, rules)
                ),
                chunks=tuple(
                    _lay_out_chunk(row, end, tables, window, rules)
                    for row, end in zip(rows[num_decodes:], ends[num_decodes:])
                ),
            )
            for window in rules.windows
        },
        first_tokens=tuple(first_tokens),
        last_tokens=tuple(last_tokens),
    )


def _reading_order(row: StepRow) -> tuple[bool, int]:
    return (True, 0) if row.num_tokens > 1 else (False, -row.start)


def _lay_out_buckets(
    rows: list[StepRow], tables: SlotTables, window: int | None, rules: LayoutRules
) -> Iterator[DecodeBucket]:
    size = rules.block_size
    first_blocks = [_first_key(row.start, window) // size for row in rows]
    num_blocks = [
        row.start // size + 1 - first for row, first in zip(rows, first_blocks)
    ]
    for begin, end in _cut_buckets(num_blocks, rules.gather_limit // size):
        width = max(num_blocks[begin:end])
        slots, starts, firsts = send_ids(
            [
                *(row.slot for row in rows[begin:end]),
                *(row.start for row in rows[begin:end]),
                *first_blocks[begin:end],
            ],
            rules.device,
        ).view(3, end - begin, 1)
        # Columns behind a row's end read its last block again, whose keys are masked.
        columns = (firsts + _count_up(0, width, rules)).minimum(starts // size)
        keys = firsts * size + _count_up(0, width * size, rules)
        visible = _is_visible(starts, keys, window)  # (num_rows, width * size)
        yield DecodeBucket(
            begin=begin,
            end=end,
            block_ids=tables.block_ids[slots, columns].flatten(),
            mask=_to_mask(visible, rules)[:, None, None, :],
        )


def _cut_buckets(num_blocks: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Cut rows into slices of about the same size.

    Args:
      num_blocks: of each row; falling, or nearly so where windows begin within blocks.
      limit: blocks of one slice at most, padding included, unless it is one row.
    """
    begin, width = 0, 0
    for end, wanted in enumerate(num_blocks):
        wider = max(width, wanted)
        # A quarter of padding costs about what one more call of the kernel would;
        # below 4 blocks the call costs more than whatever is read.
        is_alike = 4 * wanted + 16 >= 3 * wider
        if end > begin and not (is_alike and wider * (end + 1 - begin) <= limit):
            yield begin, end
            begin, wider = end, wanted
        width = wider
    if num_blocks:
        yield begin, len(num_blocks)


def _lay_out_chunk(
    row: StepRow, end: int, tables: SlotTables, window: int | None, rules: LayoutRules
) -> Chunk:
    size = rules.block_size
    num_tokens = row.end
    first_block = 0 if row.start == 0 else _first_key(row.start, window) // size
    first_key = first_block * size
    needs_mask = (
        rules.explicit_masks
        or row.start > 0
        or (window is not None and window < num_tokens)
    )
    queries = _count_up(row.start, num_tokens, rules)[:, None]
    keys = _count_up(first_key, num_tokens, rules)
    block_ids = tables.block_ids[row.slot, first_block : -(-num_tokens // size)]
    return Chunk(
        begin=end - row.num_tokens,
        end=end,
        block_ids=block_ids if row.start else None,
        num_keys=num_tokens - first_key,
        mask=(
            _to_mask(_is_visible(queries, keys, window), rules) if needs_mask else None
        ),
    )


def _first_key(query: int, window: int | None) -> int:
    return 0 if window is None else max(0, query - window + 1)


def _is_visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    visible = keys <= queries
    if window is not None:
        # As transformers' sliding_window_overlay: the query itself counts.
        visible &= keys > queries - window
    return visible


def _to_mask(visible: Tensor, rules: LayoutRules) -> Tensor:
    mask = torch.zeros(visible.shape, dtype=rules.dtype, device=rules.device)
    return mask.masked_fill_(~visible, -torch.inf)


def _count_up(begin: int, end: int, rules: LayoutRules) -> Tensor:
    return torch.arange(begin, end, device=rules.device)
