"""Shards of a model that are threads, and the whole models to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import threading
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from trioserve.model.runner import ModelRunner
from trioserve.model.sampling.launched import LaunchedStep
from trioserve.model.shards.group import TensorGroup
from trioserve.model.stages.stage import LoadedStage
from trioserve.types.plan import StepPlan

T = TypeVar("T")


class ThreadCollectives:
    """The Collectives of threads of one process.

    Args:
      index: of this thread among the parties of the barrier.
      parts: a place for each thread's tensor.
      turn: held by the one thread that computes.
    """

    def __init__(
        self,
        index: int,
        barrier: threading.Barrier,
        parts: list[Tensor | None],
        turn: threading.Lock,
    ) -> None:
        self._turn = turn
        self._index = index
        self._barrier = barrier
        self._parts = parts

    def wait_for_all(self) -> None:
        self._wait()

    def sum(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack([*self._exchange(tensor)]).sum(dim=0))

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        return self._exchange(tensor)

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self._exchange(tensor)[0])

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self._parts[self._index] = tensor.clone()
        self._wait()
        parts = [part for part in self._parts if part is not None]
        # Nobody writes the next exchange before all have read this one.
        self._wait()
        shapes = {part.shape for part in parts}
        assert len(parts) == self._barrier.parties and len(shapes) == 1
        return parts

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait(timeout=60.0)
        finally:
            self._turn.acquire()


class Threads:
    """A thread for each group of processes that share layers.

    The threads take turns, because Triton's interpreter works in one at a time.
    """

    def __init__(self, groups: Sequence[TensorGroup]) -> None:
        self._count = len(groups)
        self._barrier = threading.Barrier(self._count)
        self._turn = threading.Lock()
        self._threads = ThreadPoolExecutor(self._count)
        parts: list[Tensor | None] = [None] * self._count
        for i, group in enumerate(groups):
            group.connect(ThreadCollectives(i, self._barrier, parts, self._turn))

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Call `work` with the number of each thread; returns all results."""

        def take_turn(index: int) -> T:
            with self._turn:
                try:
                    return work(index)
                except BaseException:
                    # The others would wait for it.
                    self._barrier.abort()
                    raise

        calls = [self._threads.submit(take_turn, i) for i in range(self._count)]
        return [call.result() for call in calls]

    def close(self) -> None:
        self._threads.shutdown()


class Shards:
    """All shards of a model, each with a runner and a thread."""

    def __init__(self, models: Sequence[LoadedStage], **sizes: int) -> None:
        self.models = models
        groups = [model.tensor_group for model in models]
        self._threads = Threads([group for group in groups if group is not None])
        self.runners = [ModelRunner(model, **sizes) for model in models]

    def warm_up(self) -> None:
        """Let all runners get ready, and capture graphs."""
        self._threads.run(lambda i: self.runners[i].warm_up())

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Run a plan on all shards; returns the step of the one that samples."""
        launched = self._threads.run(lambda i: self.runners[i].launch(plan))
        assert all(step.sampled is None for step in launched[1:])
        return launched[0]

    def close(self) -> None:
        self._threads.close()


@pytest.fixture
def make_shards() -> Iterator[Callable[..., Shards]]:
    made = []

    def make(models: Sequence[LoadedStage], **sizes: int) -> Shards:
        made.append(Shards(models, **sizes))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def make_threads() -> Iterator[Callable[[Sequence[TensorGroup]], Threads]]:
    made = []

    def make(groups: Sequence[TensorGroup]) -> Threads:
        made.append(Threads(groups))
        return made[-1]

    yield make
    for each in made:
        each.close()
