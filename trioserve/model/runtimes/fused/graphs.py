"""Decodes as graphs: all launches of a step at once, for batches of a few sizes.

The launches of a step take the host longer than the device needs for one token of a small
model. A graph is captured once for each size, and replayed with other numbers in the same
tensors. A batch takes the next larger size; the rest of its rows are padding, which computes
something that nobody reads, and writes nothing to the cache and to states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ....kernels.triton.tiles import (
    ADAPTER_NUMBERS,
    ROW_NUMBERS,
    TILE_NUMBERS,
    AdapterTiles,
    Tiles,
)

# Sizes up to 8 are powers of two, because a batch of a few rows should not be padded much.
# Larger ones are multiples, so that a batch of 65 does not cost as much as one of 128.
_SMALL = (1, 2, 4, 8)
_STEPS = ((64, 8), (256, 16), (1 << 20, 64))

# Slot of a row that is padding; the kernels write nothing for it.
NO_SLOT = -1


def list_sizes(most: int) -> list[int]:
    """Return the sizes of batches that are captured, up to `most` rows.

    Returns:
      rising sizes; the last one is `most`
    """
    sizes = [size for size in _SMALL if size < most]
    size = _SMALL[-1]
    for limit, step in _STEPS:
        while size + step < most and size < limit:
            size += step
            sizes.append(size)
    return [*sizes, most]


def find_size(sizes: Sequence[int], num_rows: int) -> int | None:
    """Return the smallest size that has room for some rows; None if none has."""
    place = bisect_left(sizes, num_rows)
    return sizes[place] if place < len(sizes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """The tensors that a graph reads, at the same place in each replay.

    Attributes:
      vectors: (size, hidden_size), of the tokens
      tiles: one tile for each row.
    """

    vectors: Tensor
    tiles: Tiles

    def fill(self, vectors: Tensor, tiles: Tiles) -> None:
        """Take the numbers of a step; the rows behind them become padding."""
        count, mine = len(vectors), self.tiles
        self.vectors[:count].copy_(vectors)
        mine.slots[:count].copy_(tiles.slots)
        mine.slots[count:].fill_(NO_SLOT)
        mine.positions[:count].copy_(tiles.positions)
        mine.decodes[:count].copy_(tiles.decodes)
        # No tokens.
        mine.decodes[count:].zero_()
        if mine.rows is not None:
            assert tiles.rows is not None, "the model has states"
            mine.rows[:count].copy_(tiles.rows)
            mine.rows[count:].zero_()
        if mine.adapters is not None:
            assert tiles.adapters is not None, "the graphs with adapters run it"
            count = len(tiles.adapters.numbers)
            mine.adapters.numbers[:count].copy_(tiles.adapters.numbers)
            # Slot 0 changes nothing.
            mine.adapters.numbers[count:].zero_()


def make_inputs(
    size: int,
    hidden_size: int,
    dtype: torch.dtype,
    tables: Tensor,
    window_tables: Tensor | None = None,
    *,
    has_states: bool = False,
    has_adapters: bool = False,
) -> DecodeInputs:
    """Make the tensors of a size, all padding.

    Args:
      tables, window_tables: as in Tiles; all sizes share them.
      has_states: some layers keep states.
      has_adapters: rows have adapters.
    """
    device = tables.device

    def make_numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    return DecodeInputs(
        vectors=torch.zeros((size, hidden_size), dtype=dtype, device=device),
        tiles=Tiles(
            tables=tables,
            window_tables=window_tables,
            slots=torch.full((size,), NO_SLOT, device=device),
            positions=torch.zeros(size, dtype=torch.int64, device=device),
            decodes=make_numbers(size, TILE_NUMBERS),
            chunks=make_numbers(0, TILE_NUMBERS),
            rows=make_numbers(size, ROW_NUMBERS) if has_states else None,
            adapters=(
                AdapterTiles(numbers=make_numbers(size, ADAPTER_NUMBERS))
                if has_adapters
                else None
            ),
        ),
    )


class Graph(Protocol):
    """A captured computation."""

    def replay(self) -> Tensor:
        """Compute again; returns the same tensor with new numbers."""


# Captures a function, which has been called before.
Capture = Callable[[Callable[[], Tensor]], Graph]


class CudaGraphs:
    """Captures on a GPU. All graphs share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # An adapter may come while steps run: another thread reads the next one meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, capture_error_mode="thread_local"
        ):
            output = function()
        return _CudaGraph(graph, output)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._output


class DecodeGraphs:
    """The graphs of one model's decodes, by size.

    Args:
      compute: from vectors and tiles to what a step returns, (num_rows, width).
      make_inputs: makes the tensors of a size.
      capture: makes a graph; on a GPU, CudaGraphs.
      sizes: as list_sizes gives them.
      has_room: whether one more graph may be captured; it is asked before each.
    """

    def __init__(
        self,
        compute: Callable[[Tensor, Tiles], Tensor],
        make_inputs: Callable[[int], DecodeInputs],
        capture: Capture,
        sizes: Sequence[int],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._graphs: dict[int, tuple[DecodeInputs, Graph]] = {}
        # The largest first: the others then fit into its memory.
        for size in sorted(sizes, reverse=True):
            if not has_room():
                break
            inputs = make_inputs(size)

            def run(inputs: DecodeInputs = inputs) -> Tensor:
                return compute(inputs.vectors, inputs.tiles)

            # Kernels are compiled, and libraries choose theirs, before a graph is captured.
            run()
            self._graphs[size] = inputs, capture(run)
        self.sizes = sorted(self._graphs)

    def run(self, vectors: Tensor, tiles: Tiles) -> Tensor | None:
        """Compute a step of decodes.

        Args:
          vectors: (num_rows, hidden_size)
          tiles: one tile for each row, and no chunks.

        Returns:
          (num_rows, width), which the next step overwrites; None if no graph has room
        """
        size = find_size(self.sizes, len(vectors))
        if size is None:
            return None
        inputs, graph = self._graphs[size]
        inputs.fill(vectors, tiles)
        return graph.replay()[: len(vectors)]
