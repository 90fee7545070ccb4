"""Decodes as graphs: all launches of a step at once, for batches of a few sizes.

The launches of a step take the host longer than the device needs for one token of a small
model. A graph is captured once for each size, and replayed with other numbers in the same
tensors. A batch takes the next larger size; the rest of its rows are padding, which computes
something that nobody reads, and writes nothing to the cache and to states.

A device may refuse to capture a step, or have no memory for its graph. Then batches of this
size take a larger graph, or run by single launches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ...device.numbers import Numbers
from ...self_check.compare import describe_failure, find_difference
from ...shards.group import StageLost
from .decode_inputs import DecodeInputs

# Logits, or hidden states; and the next tokens, if the graph chooses them.
GraphOutput = tuple[Tensor, Tensor | None]

# Rows of logits that are compared at once.
_NUM_COMPARED = 8

_ELSEWHERE = "another process that shares the layers has none"

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
    """A captured computation.

    Attributes:
      output: the tensors that `replay` returns.
    """

    @property
    def output(self) -> GraphOutput: ...

    def replay(self) -> GraphOutput:
        """Compute again; returns the same tensors with new numbers."""


# Captures a function, which has been called before.
Capture = Callable[[Callable[[], GraphOutput]], Graph]


class CudaGraphs:
    """Captures on a GPU. All graphs share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # Torch's pinned memory asks them whether they are being captured.
        self._left_open: list[torch.cuda.CUDAGraph] = []

    def __call__(self, function: Callable[[], GraphOutput]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        try:
            # The outer one, because torch stays in the stream of a capture whose end fails.
            with torch.cuda.stream(torch.cuda.current_stream()):
                # An adapter may come while steps run: another thread reads the next one
                # meanwhile.
                with torch.cuda.graph(
                    graph, pool=self._pool, capture_error_mode="thread_local"
                ):
                    output = function()
        except Exception as error:
            self._close(graph)
            # Torch 2.11 refuses further captures in the same one.
            self._pool = torch.cuda.graph_pool_handle()
            # The end of a capture that has failed says only that it has.
            raise error.__context__ or error from None
        return _CudaGraph(graph, output)

    def _close(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture for torch's allocator, if torch has not.

        Torch before 2.13 has not if the device refuses its end. The allocator would keep the
        results of all later steps, and nobody could empty its cache.
        """
        try:
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        except (AttributeError, RuntimeError):
            return
        self._left_open.append(graph)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: GraphOutput) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> GraphOutput:
        self._graph.replay()
        return self.output


class CapturedDecodes:
    """The graphs of one size, with the tensors that they read.

    Args:
      graph: of the step.
      draw: chooses tokens by the settings of rows, behind the other; None if it cannot.
    """

    def __init__(self, inputs: DecodeInputs, graph: Graph, draw: Graph | None) -> None:
        self.size = inputs.size
        self._inputs = inputs
        self._graph = graph
        self._draw = draw

    @property
    def draws(self) -> bool:
        """Whether `numbers` may have settings."""
        return self._draw is not None

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
        output = self._graph.replay()
        if "settings" in numbers:
            assert self._draw is not None, "it draws"
            output = self._draw.replay()
        return output


class DecodeGraphs:
    """The graphs of one model's decodes, by size.

    Args:
      compute: from the inputs to what a step returns.
      make_inputs: makes the tensors of a size.
      capture: makes a graph; on a GPU, CudaGraphs.
      sizes: as list_sizes gives them.
      has_room: whether one more graph may be captured; it is asked before each.
      agree: whether all processes that share the layers have the same graph.
      compares: the inputs that make_inputs makes have rows, so graphs must give for them what
        `compute` gives.
      draw: chooses the next tokens by the settings in the inputs, from the logits; it has a
        graph of its own, because most of it is idle work for other steps.

    Attributes:
      sizes: of the graphs, rising.
      fault: why a size has none, in one sentence; None if only memory has ended them.
    """

    def __init__(
        self,
        compute: Callable[[DecodeInputs], GraphOutput],
        make_inputs: Callable[[int], DecodeInputs],
        capture: Capture,
        sizes: Sequence[int],
        has_room: Callable[[], bool] = lambda: True,
        *,
        agree: Callable[[bool], bool] = bool,
        compares: bool = False,
        draw: Callable[[DecodeInputs, Tensor], Tensor] | None = None,
    ) -> None:
        self._captured: dict[int, CapturedDecodes] = {}
        self.fault: str | None = None
        # The largest first: the others then fit into its memory.
        for size in sorted(sizes, reverse=True):
            if not agree(has_room()):
                break
            inputs = make_inputs(size)
            run = partial(compute, inputs)
            # Kernels are compiled, and libraries choose theirs, before a graph is captured.
            expected = run()
            graph, fault = _try_capture(capture, run)
            # Together, because graphs of processes that share the layers wait for each other.
            if agree(graph is not None) and graph is not None:
                fault = _find_fault(graph, expected if compares else None)
            if agree(fault is None) and graph is not None:
                drawing = None
                if draw is not None:
                    choose = partial(draw, inputs)
                    drawing, fault = _capture_draw(capture, graph, choose, compares)
                self._captured[size] = CapturedDecodes(inputs, graph, drawing)
                if fault is not None and self.fault is None:
                    self.fault = f"none that draws for {size} rows: {fault}"
            elif self.fault is None:
                self.fault = f"none of {size} rows: {fault or _ELSEWHERE}"
        self.sizes = sorted(self._captured)

    def find(self, num_rows: int) -> CapturedDecodes | None:
        """Return the smallest graph that has room for some rows; None if none has."""
        size = find_size(self.sizes, num_rows)
        return None if size is None else self._captured[size]


def _try_capture(
    capture: Capture, run: Callable[[], GraphOutput]
) -> tuple[Graph | None, str | None]:
    """Return a graph, or why there is none."""
    try:
        return capture(run), None
    except Exception as error:
        return None, describe_failure(error)


def _capture_draw(
    capture: Capture, graph: Graph, draw: Callable[[Tensor], Tensor], compares: bool
) -> tuple[Graph | None, str | None]:
    """Return a graph that chooses tokens by the logits of another, or why there is none."""
    logits, _ = graph.output

    def run() -> GraphOutput:
        return logits, draw(logits)

    try:
        expected = run()
    except Exception as error:
        return None, describe_failure(error)
    drawing, fault = _try_capture(capture, run)
    if drawing is not None:
        fault = _find_fault(drawing, expected if compares else None)
    return None if fault else drawing, fault


def _find_fault(graph: Graph, expected: GraphOutput | None) -> str | None:
    """Replay a graph; return how it fails, or differs from what its function gives."""
    try:
        numbers, chosen = graph.replay()
        if expected is None:
            return None
        # In parts, because they take memory as float32.
        parts = (each.split(_NUM_COMPARED) for each in (expected[0], numbers))
        fault = next(filter(None, map(find_difference, *parts)), None)
        if fault is None and chosen is not None:
            # Which one of two tokens of nearly the same logit wins, rounding decides.
            found = numbers.gather(1, chosen[:, None])[:, 0]
            if not torch.equal(found, numbers.amax(dim=-1)):
                fault = "it chooses other tokens"
    except StageLost:
        raise
    except Exception as error:
        fault = describe_failure(error)
    return fault
