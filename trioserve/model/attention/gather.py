"""The paged backend of PyTorch's own operators, on any device.

It gathers the blocks of each sequence into one tensor and attends to that. On a CPU with
bfloat16 instructions, PyTorch's fused operator was measured faster than products and
softmax written out.

    tokens   | decode rows, longest first | chunk | chunk | ...
               one token each               many tokens each

Rows that compute one token are read in *buckets*: slices of rows of about the same
length, whose blocks are gathered together and padded to the longest. Rows that
compute more are *chunks*; each of them is attended to by itself. Layers with a sliding
window read fewer blocks, so each reach has buckets and chunks of its own.

Source: Kwon et al. 2023 (PagedAttention), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ...types.plan import StepRow
from ..device.tensors import send_ids
from ..step.layout import StepInputs
from ..step.slots import SlotTables
from .backend import PagedModel
from .bridge import AttentionCall
from .cache_memory import count_kv_bytes
from .kv_cache import LayerCache, allocate
from .probe import LayerSpec, Reach
from .scores import attend_by_scores

# Gathered keys and values should still lie in a core's cache when they are read: of 0.6
# to 10 MiB, 2.5 was the fastest on a CPU with 1 MiB of L2 a core. A GPU wants few large
# calls; its number is a guess.
_GATHER_BYTES = 3 * 2**20
_GATHER_BYTES_OF_GPU = 256 * 2**20


class GatherAttention:
    """The PagedBackend of all layers that the probe accepts.

    Args:
      model: its layers, and the size of its cache.
      tables: the blocks of each slot.
    """

    def __init__(self, model: PagedModel, tables: SlotTables) -> None:
        self._tables = tables
        self._rules = _make_rules(model)
        self.caches = allocate(model)
        reads = [
            _Reads(reach=layer.reach, is_windowed=is_windowed)
            for layer, is_windowed in zip(model.layers, model.list_windowed())
        ]
        self._layers = tuple(zip(model.layers, self.caches, reads))
        self._reads = tuple(dict.fromkeys(reads))

    @staticmethod
    def find_obstacle(model: PagedModel) -> str | None:
        return None

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Put single tokens first, tokens of the longest sequences before others."""
        return sorted(range(len(rows)), key=lambda i: _reading_order(rows[i]))

    def begin(self, step: StepInputs) -> _GatherStep:
        positions = step.position_ids[0]
        cache_slots = {
            group: self._tables.find_cache_slots(step.slot_ids, positions, group)
            for group in {reads.is_windowed for reads in self._reads}
        }
        layouts = {
            reads: _lay_out(
                step,
                self._tables.get_table(reads.is_windowed),
                reads.reach,
                self._rules,
            )
            for reads in self._reads
        }
        return _GatherStep(self._layers, cache_slots, layouts)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The facts on which the layout of a layer's reads depends.

    Args:
      is_windowed: it has the blocks of layers with windows.
    """

    reach: Reach
    is_windowed: bool


class _GatherStep:
    """Attention of one step: each call reads and writes the next layer's cache.

    Args:
      cache_slots: whether a layer is windowed -> (num_tokens,) int64,
        block * block_size + offset of each new token
      layouts: the reads of a layer -> their layout.
    """

    def __init__(
        self,
        layers: tuple[tuple[LayerSpec, LayerCache, _Reads], ...],
        cache_slots: dict[bool, Tensor],
        layouts: dict[_Reads, _Layout],
    ) -> None:
        self._layers = iter(layers)
        self._cache_slots = cache_slots
        self._layouts = layouts

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        # Invariant: a model calls attention in the order that the probe saw.
        layer, cache, reads = next(self._layers)
        if layer.values_in_keys:
            # The fused operator is several times as fast, and needs values as wide as keys.
            # What it computes of the other numbers is dropped below.
            value = key
        # All keys and values are written before any are read, because rows of a step
        # may share a block: then one row reads the keys that another row writes.
        if layer.shares is None:
            cache.write(self._cache_slots[reads.is_windowed], key, value)
        layout = self._layouts[reads]
        parts = [
            _attend_bucket(query[bucket.begin : bucket.end], cache, bucket, call)
            for bucket in layout.buckets
        ]
        for chunk in layout.chunks:
            span = slice(chunk.begin, chunk.end)
            if chunk.block_ids is None:
                keys, values = key[span], value[span]
            else:
                keys, values = cache.read(chunk.block_ids)
            parts.append(_attend_chunk(query[span], keys, values, chunk, call))
        # Invariant: buckets, then chunks, cover the flat tokens in order.
        output = parts[0] if len(parts) == 1 else torch.cat(parts)
        return output[..., : layer.value_dim]


# ---- layout --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
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
class _Chunk:
    """Tokens [begin, end) of the flat tokens, neighbours in one sequence.

    Args:
      block_ids: (num_blocks,) int64; None if the chunk starts its sequence: then all keys
        are the chunk's own
      num_keys: keys to use from those blocks.
      mask: (num_tokens, num_keys), added to scores: 0 or -inf; None is causal
    """

    begin: int
    end: int
    block_ids: Tensor | None
    num_keys: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """The reads of all layers with the same reach."""

    buckets: tuple[_Bucket, ...]
    chunks: tuple[_Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The settings of a layout that do not change from step to step.

    Args:
      block_size: tokens in one KV block.
      gather_limit: largest number of tokens to gather at once, padding included. One row
        alone may have more.
      explicit_masks: layers that change scores cannot use an operator's causal flag.
      rereads: the cache gives other numbers than were written, which all queries shall see.
    """

    block_size: int
    gather_limit: int
    explicit_masks: bool
    rereads: bool
    dtype: torch.dtype
    device: torch.device


def _make_rules(model: PagedModel) -> _Rules:
    is_gpu = model.device.type == "cuda"
    gather_bytes = _GATHER_BYTES_OF_GPU if is_gpu else _GATHER_BYTES
    token_bytes = max(
        (count_kv_bytes((layer,), model.dtype) for layer in model.layers),
        # A stage whose layers keep states alone reads no keys.
        default=1,
    )
    return _Rules(
        block_size=model.block_size,
        gather_limit=gather_bytes // token_bytes,
        explicit_masks=any(layer.needs_scores for layer in model.layers),
        rereads=model.kv_dtype == torch.int8,
        dtype=model.dtype,
        device=model.device,
    )


def _reading_order(row: StepRow) -> tuple[bool, int]:
    return (True, 0) if row.num_tokens > 1 else (False, -row.start)


def _lay_out(step: StepInputs, table: Tensor, reach: Reach, rules: _Rules) -> _Layout:
    rows, key_ends = step.rows, step.key_ends if reach.joins_images else None
    num_decodes = sum(row.num_tokens == 1 for row in rows)
    ends = list(accumulate(row.num_tokens for row in rows))
    return _Layout(
        buckets=tuple(_lay_out_buckets(rows[:num_decodes], table, reach, rules)),
        chunks=tuple(
            _lay_out_chunk(row, end, table, reach, rules, key_ends)
            for row, end in zip(rows[num_decodes:], ends[num_decodes:])
        ),
    )


def _lay_out_buckets(
    rows: Sequence[StepRow], table: Tensor, reach: Reach, rules: _Rules
) -> Iterator[_Bucket]:
    size = rules.block_size
    first_blocks = [reach.first_key(row.start) // size for row in rows]
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
        # Columns behind a row's end read its last block again; those keys are masked.
        columns = (firsts + _count_up(0, width, rules)).minimum(starts // size)
        keys = firsts * size + _count_up(0, width * size, rules)
        visible = reach.sees(starts, keys)  # (num_rows, width * size)
        yield _Bucket(
            begin=begin,
            end=end,
            block_ids=table[slots, columns].flatten(),
            mask=_to_mask(visible, rules)[:, None, None, :],
        )


def _cut_buckets(num_blocks: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """Cut rows into slices of about the same size.

    Args:
      num_blocks: of each row; falling, or nearly so if windows begin within blocks.
      limit: largest number of blocks in one slice of several rows, padding included.
    """
    begin, width = 0, 0
    for end, wanted in enumerate(num_blocks):
        wider = max(width, wanted)
        # A quarter of padding costs about as much as one more call of the operator;
        # below 4 blocks the call costs more than the reading.
        is_alike = 4 * wanted + 16 >= 3 * wider
        if end > begin and not (is_alike and wider * (end + 1 - begin) <= limit):
            yield begin, end
            begin, wider = end, wanted
        width = wider
    if num_blocks:
        yield begin, len(num_blocks)


def _lay_out_chunk(
    row: StepRow,
    end: int,
    table: Tensor,
    reach: Reach,
    rules: _Rules,
    key_ends: Tensor | None,
) -> _Chunk:
    size = rules.block_size
    num_tokens = row.end
    first_block = 0 if row.start == 0 else reach.first_key(row.start) // size
    first_key = first_block * size
    needs_mask = (
        rules.explicit_masks
        or row.start > 0
        or reach.first_key(num_tokens - 1) > 0
        or key_ends is not None
    )
    if key_ends is not None:
        key_ends = key_ends[end - row.num_tokens : end, None]
    queries = _count_up(row.start, num_tokens, rules)[:, None]
    keys = _count_up(first_key, num_tokens, rules)
    block_ids = table[row.slot, first_block : -(-num_tokens // size)]
    return _Chunk(
        begin=end - row.num_tokens,
        end=end,
        block_ids=block_ids if row.start or rules.rereads else None,
        num_keys=num_tokens - first_key,
        mask=(
            _to_mask(reach.sees(queries, keys, key_ends), rules) if needs_mask else None
        ),
    )


def _to_mask(visible: Tensor, rules: _Rules) -> Tensor:
    mask = torch.zeros(visible.shape, dtype=rules.dtype, device=rules.device)
    return mask.masked_fill_(~visible, -torch.inf)


def _count_up(begin: int, end: int, rules: _Rules) -> Tensor:
    return torch.arange(begin, end, device=rules.device)


# ---- attention -----------------------------------------------------------------------


def _attend_bucket(
    query: Tensor, cache: LayerCache, bucket: _Bucket, call: AttentionCall
) -> Tensor:
    num_rows, num_heads, key_dim = query.shape
    keys, values = cache.read(bucket.block_ids)
    num_kv_heads, value_dim = values.shape[1:]
    # The heads that share keys take the place of the tokens of a longer query, so keys
    # and values are never repeated.
    output = _attend(
        query.reshape(num_rows, num_kv_heads, -1, key_dim),
        keys.unflatten(0, (num_rows, -1)).transpose(1, 2),
        values.unflatten(0, (num_rows, -1)).transpose(1, 2),
        bucket.mask,
        call,
        (1, num_kv_heads, -1, 1),
    )  # (num_rows, num_kv_heads, group_size, value_dim)
    return output.reshape(num_rows, num_heads, value_dim)


def _attend_chunk(
    query: Tensor, keys: Tensor, values: Tensor, chunk: _Chunk, call: AttentionCall
) -> Tensor:
    num_tokens, num_heads, _ = query.shape
    num_kv_heads, value_dim = values.shape[1:]
    group_size = num_heads // num_kv_heads
    keys = keys[: chunk.num_keys].transpose(0, 1)[:, None]
    values = values[: chunk.num_keys].transpose(0, 1)[:, None]
    # Each group of heads is a batch of its own. Expanding repeats keys and values by a
    # stride of 0, without a copy.
    output = _attend(
        query.transpose(0, 1).unflatten(0, (num_kv_heads, group_size)),
        keys.expand(-1, group_size, -1, -1),
        values.expand(-1, group_size, -1, -1),
        chunk.mask,
        call,
        (num_kv_heads, -1, 1, 1),
    )  # (num_kv_heads, group_size, num_tokens, value_dim)
    return output.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, value_dim)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    call: AttentionCall,
    sinks_shape: tuple[int, ...],
) -> Tensor:
    if not call.needs_scores:
        return scaled_dot_product_attention(
            query, keys, values, mask, is_causal=mask is None, scale=call.scaling
        )
    assert mask is not None, "layers that work on scores are laid out with masks"
    return attend_by_scores(query, keys, values, mask, call, sinks_shape)
