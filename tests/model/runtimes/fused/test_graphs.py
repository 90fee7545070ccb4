"""A step that no graph can run is run by single launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.fused.graphs import (
    CudaGraphs,
    DecodeGraphs,
    GraphOutput,
    find_size,
    list_sizes,
)
from trioserve.model.sampling.host_copy import copy_to_host

from ...planning import Planner, make_prompt

LOGITS = torch.tensor([[0.5, 2.0, 1.0], [3.0, 3.0, -1.0]]).repeat(9, 1)
CHOSEN = torch.tensor([1, 0]).repeat(9)


class Graph:
    """Stands in for a graph of the device."""

    def __init__(self, replay: Callable[[], GraphOutput]) -> None:
        self.replay = replay


def capture_all(
    capture: Callable[[Any], Any], *, compares: bool = True, **options: Any
) -> DecodeGraphs:
    return DecodeGraphs(
        lambda inputs: (LOGITS[: inputs.size], CHOSEN[: inputs.size]),
        lambda size: SimpleNamespace(size=size),  # type: ignore[arg-type,return-value]
        capture,
        (2, 9, 18),
        compares=compares,
        **options,
    )


def replace_last(row: Tensor, value: Any) -> Tensor:
    changed = row.clone()
    changed[-1] = value
    return changed


def test_sizes_of_graphs() -> None:
    assert list_sizes(1) == [1]
    assert list_sizes(6) == [1, 2, 4, 6]
    assert list_sizes(100) == [1, 2, 4, *range(8, 65, 8), 80, 96, 100]
    assert list_sizes(512)[-6:] == [240, 256, 320, 384, 448, 512]
    assert [find_size([1, 2, 4], rows) for rows in (1, 3, 4, 5)] == [1, 4, 4, None]


def test_sizes_whose_capture_fails_have_no_graph() -> None:
    def capture(run: Callable[[], GraphOutput]) -> Graph:
        if len(run()[0]) > 2:
            raise torch.OutOfMemoryError("no memory is left")
        return Graph(run)

    graphs = capture_all(capture)
    assert graphs.sizes == [2]
    assert graphs.fault == "none of 18 rows: it fails: no memory is left"
    assert graphs.find(3) is None
    assert capture_all(Graph).sizes == [2, 9, 18]
    assert capture_all(Graph).fault is None


@pytest.mark.parametrize(
    ("numbers", "chosen", "fault"),
    [
        (torch.tensor([2.0, 3.0, -1.0]), 1, "its output would differ by"),
        (torch.nan, 0, "its output would differ by nan"),
        (LOGITS[1], 2, "it chooses other tokens"),
        # Of two best tokens any is right.
        (LOGITS[1], 1, None),
    ],
)
def test_sizes_whose_graph_gives_other_numbers_have_none(
    numbers: Any, chosen: int, fault: str | None
) -> None:
    def capture(run: Callable[[], GraphOutput]) -> Graph:
        logits, tokens = run()
        assert tokens is not None
        if len(logits) < 18:
            return Graph(run)
        last = replace_last(logits, numbers), replace_last(tokens, chosen)
        return Graph(lambda: last)

    graphs = capture_all(capture)
    assert graphs.sizes == ([2, 9, 18] if fault is None else [2, 9])
    expected = None if fault is None else f"none of 18 rows: {fault}"
    assert (graphs.fault and graphs.fault[: len(expected or "")]) == expected
    assert capture_all(capture, compares=False).sizes == [2, 9, 18]


def test_a_graph_that_cannot_be_replayed_is_none() -> None:
    def fail() -> GraphOutput:
        raise RuntimeError("no memory to launch it")

    graphs = capture_all(lambda run: Graph(fail), compares=False)
    assert graphs.sizes == []
    assert graphs.fault == "none of 18 rows: it fails: no memory to launch it"


def test_processes_that_share_layers_have_the_same_graphs() -> None:
    """Three questions for each size: has it room, is it captured, is it right."""
    answers = iter([True, True, True, True, False, False, True, True, False])
    replayed = []

    def capture(run: Callable[[], GraphOutput]) -> Graph:
        def replay() -> GraphOutput:
            replayed.append(len(run()[0]))
            return run()

        return Graph(replay)

    # The other process has no second graph, and a wrong third one.
    graphs = capture_all(capture, agree=lambda mine: next(answers) and mine)
    assert graphs.sizes == [18]
    # A replay would wait for a process that has none.
    assert replayed == [18, 2]
    assert graphs.fault is not None and "another process" in graphs.fault


class Cuda:
    """Stands in for torch.cuda: its captures can fail as those of a device do.

    Args:
      ends: torch ends a capture that the device has refused.
    """

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.stream = "steps"
        self.recording: list[str] = []

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self, graph: object, *, pool: str, **_: object) -> Iterator[None]:
        self.stream = "capture"
        self.recording.append(pool)
        try:
            yield
        except RuntimeError:
            if self.ends:
                self.recording.remove(pool)
            # The stream stays.
            raise RuntimeError("the capture had failed before")
        self.recording.remove(pool)
        self.stream = "steps"

    def end(self, device: int, pool: str) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording")
        self.recording.remove(pool)


@pytest.mark.parametrize("ends", [True, False])
def test_a_refused_capture_leaves_stream_and_memory_as_they_were(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    cuda = Cuda(ends)
    for name, value in {
        "graph_pool_handle": lambda: "pool",
        "CUDAGraph": object,
        "current_device": lambda: 0,
        "current_stream": lambda: cuda.stream,
        "stream": cuda.use,
        "graph": cuda.capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end, raising=False)
    capture = CudaGraphs()

    def refuse() -> GraphOutput:
        assert (cuda.stream, cuda.recording) == ("capture", ["pool"])
        raise RuntimeError("the operator waits")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="the operator waits"):
            capture(refuse)
        assert (cuda.stream, cuda.recording) == ("steps", [])
    capture(lambda: (LOGITS, None))
    assert (cuda.stream, cuda.recording) == ("steps", [])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_goes_on_behind_a_refused_capture() -> None:
    capture, stream = CudaGraphs(), torch.cuda.current_stream()
    numbers = torch.arange(4.0, device="cuda")

    def count_active() -> int:
        torch.cuda.synchronize()
        # Memory that copies have used is free from the next allocation on.
        torch.empty(1, device="cuda")
        return int(torch.cuda.memory_stats()["active_bytes.all.current"])

    active = count_active()
    with pytest.raises(Exception, match="captur"):
        # It waits for the device.
        capture(lambda: (numbers * numbers.sum().item(), None))
    assert torch.cuda.current_stream() == stream
    copy_to_host(torch.ones(1 << 20, device="cuda")).read()
    # Torch 2.11 keeps what the failed capture held, but nothing of later steps.
    assert count_active() - active < 1 << 20
    torch.cuda.empty_cache()
    assert capture(lambda: (numbers + 1, None)).replay()[0].tolist() == [1, 2, 3, 4]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_whose_steps_cannot_be_captured_runs_on_a_gpu(
    tiny: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from trioserve.model.runtimes.fused import decoder

    model = tiny("qwen2", "cuda")
    choose = decoder.choose_plain

    def choose_waiting(logits: Tensor, *arguments: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing() and len(logits) != 2:
            logits.sum().item()
        return choose(logits, *arguments)

    monkeypatch.setattr(decoder, "choose_plain", choose_waiting)
    config = ModelConfig(device="cuda", dtype="float32", kernels="native")
    planner = Planner(load_model(model.folder, config, name="tiny"), max_num_seqs=4)
    with caplog.at_level(logging.WARNING):
        planner.runner.warm_up()
    (line,) = [text for text in caplog.messages if text.startswith("graphs of")]
    assert line.startswith("graphs of decodes: [2]; none of 4 rows: it fails")
    sequences = [planner.begin(make_prompt(5, slot), slot=slot) for slot in range(3)]
    planner.run(*sequences, num_tokens=9)
    planner.run(*sequences[:2], num_tokens=9)
    model.check(*sequences)
