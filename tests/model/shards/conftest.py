"""Shards of a model that are threads, and the whole models to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
import functools
from pathlib import Path
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from trioserve.config import ModelConfig
from trioserve.model import LoadedModel, ModelRunner, load_model
from trioserve.model.sampling.launched import LaunchedStep
from trioserve.model.stages import LoadedStage, load_stage
from trioserve.testing.models import save_tiny_model
from trioserve.types.plan import StepPlan
from trioserve.types.stage_place import Shard, StagePlace

CPU = ModelConfig(device="cpu", kernels="torch")


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


class Shards:
    """All shards of a model, each with a runner and a thread.

    The threads take turns, because Triton's interpreter works in one at a time.
    """

    def __init__(self, models: Sequence[LoadedStage], **sizes: int) -> None:
        self.models = models
        barrier = threading.Barrier(len(models))
        parts: list[Tensor | None] = [None] * len(models)
        self._turn = threading.Lock()
        for i, model in enumerate(models):
            assert model.tensor_group is not None
            model.tensor_group.connect(ThreadCollectives(i, barrier, parts, self._turn))
        self.runners = [ModelRunner(model, **sizes) for model in models]
        self._barrier = barrier
        self._threads = ThreadPoolExecutor(len(models))

    def warm_up(self) -> None:
        """Let all runners get ready, and capture graphs."""
        self._run(ModelRunner.warm_up)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Run a plan on all shards; returns the step of the one that samples."""
        launched = self._run(lambda runner: runner.launch(plan))
        assert all(step.sampled is None for step in launched[1:])
        first: LaunchedStep = launched[0]
        return first

    def close(self) -> None:
        self._threads.shutdown()

    def _run(self, work: Callable[[ModelRunner], Any]) -> list[Any]:
        """Do the same with all runners at once."""

        def take_turn(runner: ModelRunner) -> Any:
            with self._turn:
                try:
                    return work(runner)
                except BaseException:
                    # The others would wait for it.
                    self._barrier.abort()
                    raise

        calls = [self._threads.submit(take_turn, each) for each in self.runners]
        return [call.result() for call in calls]


@dataclass(frozen=True)
class Split:
    """A whole model, and the shards that it can be split into."""

    folder: Path
    loaded: LoadedModel

    def shards(self, count: int, kernels: str = "torch") -> list[LoadedStage]:
        config = ModelConfig(device="cpu", kernels=kernels)  # type: ignore[arg-type]
        return [
            load_stage(
                *(self.folder, config),
                name="tiny",
                place=StagePlace(
                    stage=0, num_stages=1, shard=Shard(index=index, count=count)
                ),
            )
            for index in range(count)
        ]


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Split]:
    """Build a tiny model, once for all tests."""

    @functools.cache
    def build(model_type: str = "llama", **changes: Any) -> Split:
        folder = tmp_path_factory.mktemp(model_type)
        save_tiny_model(model_type, folder, **changes)
        return Split(folder, load_model(folder, CPU, name="tiny"))

    return build


@pytest.fixture
def make_shards() -> Iterator[Callable[..., Shards]]:
    made = []

    def make(models: Sequence[LoadedStage], **sizes: int) -> Shards:
        made.append(Shards(models, **sizes))
        return made[-1]

    yield make
    for each in made:
        each.close()
