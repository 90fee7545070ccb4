"""Decodes as graphs: all launches of a step at once, for batches of a few sizes.

The launches of a step take the host longer than the device needs for one token of a small
model. A graph is captured once for each size, and replayed with other numbers in the same
tensors. A batch takes the next larger size; the rest of its rows are padding, which computes
something that nobody reads, and writes nothing to the cache and to states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ...device.numbers import Numbers
from .decode_inputs import DecodeInputs

# Logits, or hidden states; and the next tokens, if the graph chooses them.
GraphOutput = tuple[Tensor, Tensor | None]

# Sizes up to 8 are powers of two, because a batch of a few rows should not be padded much.
# Larger ones are multiples, so that a batch of 65 does not cost as much as one of 128.
_SMALL = (1, 2, 4, 8)
_STEPS = ((64, 8), (256, 16), (1 << 20, 64))


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


class Graph(Protocol):
    """A captured computation."""

    def replay(self) -> GraphOutput:
        """Compute again; returns the same tensors with new numbers."""


# Captures a function, which has been called before.
Capture = Callable[[Callable[[], GraphOutput]], Graph]


class CudaGraphs:
    """Captures on a GPU. All graphs share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], GraphOutput]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        # An adapter may come while steps run: another thread reads the next one meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, capture_error_mode="thread_local"
        ):
            output = function()
        return _CudaGraph(graph, output)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: GraphOutput) -> None:
        self._graph = graph
        self._output = output

    def replay(self) -> GraphOutput:
        self._graph.replay()
        return self._output


class CapturedDecodes:
    """The graph of one size, with the tensors that it reads."""

    def __init__(self, inputs: DecodeInputs, graph: Graph) -> None:
        self.size = inputs.size
        self._inputs = inputs
        self._graph = graph

    def run(
        self, numbers: Mapping[str, Numbers], vectors: Tensor | None = None
    ) -> GraphOutput:
        """Compute a step of decodes.

        Args:
          numbers, vectors: as DecodeInputs.fill takes them.

        Returns:
          tensors that the next step overwrites; they have rows for padding, too
        """
        self._inputs.fill(numbers, vectors)
        return self._graph.replay()


class DecodeGraphs:
    """The graphs of one model's decodes, by size.

    Args:
      compute: from the inputs to what a step returns.
      make_inputs: makes the tensors of a size.
      capture: makes a graph; on a GPU, CudaGraphs.
      sizes: as list_sizes gives them.
      has_room: whether one more graph may be captured; it is asked before each.
    """

    def __init__(
        self,
        compute: Callable[[DecodeInputs], GraphOutput],
        make_inputs: Callable[[int], DecodeInputs],
        capture: Capture,
        sizes: Sequence[int],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._captured: dict[int, CapturedDecodes] = {}
        # The largest first: the others then fit into its memory.
        for size in sorted(sizes, reverse=True):
            if not has_room():
                break
            inputs = make_inputs(size)
            run = partial(compute, inputs)
            # Kernels are compiled, and libraries choose theirs, before a graph is captured.
            run()
            self._captured[size] = CapturedDecodes(inputs, capture(run))
        self.sizes = sorted(self._captured)

    def find(self, num_rows: int) -> CapturedDecodes | None:
        """Return the smallest graph that has room for some rows; None if none has."""
        size = find_size(self.sizes, num_rows)
        return None if size is None else self._captured[size]
