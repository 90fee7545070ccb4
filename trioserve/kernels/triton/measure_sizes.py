"""The sizes of `attend` for one layer, measured on the device that will run it.

One problem has decodes that fill the device, half of their keys in long sequences and half in short
ones, and one a chunk behind a prefix. Their keys and values are too many for the device's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
import triton

from .follow import find_capability
from .paged import PagedLayer
from .size_table import SizeTable
from .tiles import Tiles, cut_tiles
from .widths import AttendSize, list_candidates, round_up

# Returns the seconds of one call of a function.
Timer = Callable[[Callable[[], object]], float]

# Keys and values of as many tokens take 140 MB if a multiprocessor has two programs, and heads
# have 128 numbers of 16 bits.
_DECODE_TOKENS = 1024
# As many short sequences take the place of a long one.
_SHORT = 8
# Most new tokens of a chunk, which has a prefix of as many.
_CHUNK_TOKENS = 2048

_REPEATS, _RUNS = 8, 4

# Sums in another order, rounded to bfloat16.
_TOLERANCE = 2e-2


def choose_sizes(layer: PagedLayer, table: SizeTable, timer: Timer) -> PagedLayer:
    """Return a layer with the fastest sizes of its programs.

    Args:
      timer: measures; `time_on_device` does on the current device.
    """
    problem: _Problem | None = None
    outputs: dict[bool, Tensor] = {}
    facts, capability = _describe(layer), find_capability()

    def measure(rows: int, size: AttendSize) -> float:
        nonlocal problem
        if problem is None:
            problem = _Problem.make(layer)
        run = problem.prepare(rows, size)
        output = run().float()
        # Of the size that the device would have without measurements.
        expected = outputs.setdefault(rows in problem.chunks, output)
        if not (output - expected).norm() <= _TOLERANCE * expected.norm():
            raise ValueError("its output differs")
        return timer(run)

    measured = {}
    for rows in sorted({layer.decode_rows, layer.chunk_rows, layer.long_rows}):
        measured[rows] = table.choose(
            f"{facts}, {rows} rows",
            list_layer_candidates(layer, rows, capability),
            partial(measure, rows),
        )
    few, many = layer.chunk_rows, layer.long_rows
    if many > few:
        (rows,) = table.choose(
            f"{facts}, {measured[few]} of {few} rows, {measured[many]} of {many}",
            [(few,), (many,)],
            lambda rows: measure(*rows, measured[rows[0]]),
        )
        if rows == few:
            del measured[many]
    return replace(layer, measured=measured)


def list_layer_candidates(
    layer: PagedLayer, rows: int, capability: int
) -> list[AttendSize]:
    """Return the sizes that a layer may have, as `list_candidates` does."""
    spec = layer.spec
    has_extras = spec.window is not None or spec.softcap is not None
    has_extras = has_extras or spec.sinks is not None
    return list_candidates(
        *(rows, layer.width, layer.itemsize),
        capability=capability,
        has_scales=layer.scales is not None,
        is_plain=not has_extras and layer.group == round_up(layer.group),
    )


def _describe(layer: PagedLayer) -> str:
    """Write down all that times depend on, beside the rows of a tile."""
    spec, device = layer.spec, layer.cache.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    facts = {
        **layer.sizes,
        "group": layer.group,
        "window": spec.window,
        "has_softcap": spec.softcap is not None,
        "has_sinks": spec.sinks is not None,
        "dtype": layer.dtype or layer.cache.dtype,
        "num_cores": layer.num_cores,
    }
    return f"{name}, Triton {triton.__version__}, {facts}"


@dataclass(frozen=True)
class _Problem:
    """Keys and values of some sequences, and queries of decodes and of a chunk.

    Attributes:
      chunks: the same chunk in tiles of so many rows.
    """

    layer: PagedLayer
    queries: Tensor
    decodes: Tiles
    chunks: Mapping[int, Tiles]

    @classmethod
    def make(cls, layer: PagedLayer) -> _Problem:
        spec, device = layer.spec, layer.cache.device
        block_size = layer.cache.shape[1]
        num_seqs = -(-2 * layer.num_cores // spec.num_kv_heads)
        each = -(-_DECODE_TOKENS // block_size)
        num_blocks = num_seqs * each
        chance = torch.Generator(device).manual_seed(0)
        cache = layer.cache.new_empty((num_blocks, *layer.cache.shape[1:]))
        if cache.dtype == torch.int8:
            cache.random_(-127, 128, generator=chance)
        else:
            cache.normal_(generator=chance)
        scales = layer.scales
        if scales is not None:
            scales = scales.new_full((2, num_blocks, *scales.shape[2:]), 0.01)
        num_tokens = min(_CHUNK_TOKENS, num_blocks * block_size // 2)
        num_long = num_seqs - num_seqs // 2
        starts = [_DECODE_TOKENS - 1] * num_long
        starts += [_DECODE_TOKENS // _SHORT - 1] * (num_seqs // 2 * _SHORT)
        queries = torch.empty(
            (max(len(starts), num_tokens), spec.num_heads, spec.key_dim),
            dtype=layer.dtype or layer.cache.dtype,
            device=device,
        ).normal_(generator=chance)
        blocks = torch.randperm(num_blocks, generator=chance, device=device)
        tables = blocks.new_zeros(len(starts), each)
        tables[:num_long] = blocks[: num_long * each].view(num_long, each)
        # In a small problem, short sequences share blocks.
        few = -(-each // _SHORT)
        short = tables[num_long:, :few]
        rest = blocks[num_long * each :].repeat(_SHORT)
        short[:] = rest[: short.numel()].view(short.shape)

        def cut(tables: Tensor, *rows: _Row, num_queries: int = 1) -> Tiles:
            tiles = cut_tiles(rows, num_queries)
            decodes, chunks = (
                torch.tensor(each, dtype=torch.int32, device=device).view(-1, 4)
                for each in tiles
            )
            unread = blocks[:0]
            return Tiles(
                tables=tables,
                slots=unread,
                positions=unread,
                decodes=decodes,
                chunks=chunks,
                num_queries=num_queries,
            )

        return cls(
            layer=replace(layer, cache=cache, scales=scales, is_windowed=False),
            queries=queries,
            decodes=cut(tables, *(_Row(*each, 1) for each in enumerate(starts))),
            chunks={
                rows: cut(
                    blocks[None],
                    _Row(0, num_tokens, num_tokens),
                    num_queries=layer.count_queries(rows),
                )
                for rows in (layer.chunk_rows, layer.long_rows)
            },
        )

    def prepare(self, rows: int, size: AttendSize) -> Callable[[], Tensor]:
        """Return a function that attends by programs of a size."""
        layer = replace(self.layer, measured={rows: size})
        if rows in self.chunks:
            tiles = self.chunks[rows]
            count = int(tiles.chunks[:, 1].sum())
        else:
            tiles, count = self.decodes, len(self.decodes.decodes)
        queries = self.queries[:count]
        return lambda: layer.attend(queries, tiles)


@dataclass(frozen=True, slots=True)
class _Row:
    slot: int
    start: int
    num_tokens: int


def time_on_device(run: Callable[[], object]) -> float:
    """Return the seconds of one call on the current device, without the host's part.

    Args:
      run: has run before, so that its kernels are compiled.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_REPEATS):
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(_RUNS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1000 / _REPEATS)
    return min(times)
