"""Pipelines whose stages are threads, and the whole models that they are cut from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import functools
from pathlib import Path
from queue import SimpleQueue
import threading
from typing import Any

import outcome
import pytest

from trioserve.config import ModelConfig
from trioserve.model import LoadedModel, ModelRunner, load_model
from trioserve.model.stages import (
    LoadedStage,
    StageLinks,
    load_stage,
    make_queue_channels,
)
from trioserve.testing.models import save_tiny_model
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.transfers import Transfer

CPU = ModelConfig(device="cpu")

# A layer for each of three stages.
_NUM_LAYERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 3},
    "gpt_oss": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@dataclass(frozen=True)
class Cut:
    """A whole model and how it may be cut."""

    folder: Path
    loaded: LoadedModel

    @functools.cache
    def stages(self, num_stages: int) -> tuple[LoadedStage, ...]:
        return tuple(
            load_stage(
                self.folder, CPU, name="tiny", stage=stage, num_stages=num_stages
            )
            for stage in range(num_stages)
        )


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Cut]:
    """Build a tiny model of three layers, once for all tests."""

    @functools.cache
    def build(model_type: str = "llama", **changes: Any) -> Cut:
        changes |= _NUM_LAYERS.get(model_type, {"num_hidden_layers": 3})
        folder = tmp_path_factory.mktemp(model_type)
        save_tiny_model(model_type, folder, **changes)
        return Cut(folder, load_model(folder, CPU, name="tiny"))

    return build


class Launched:
    """A step that all stages have been given."""

    def __init__(self, results: SimpleQueue[outcome.Outcome[StepResult]]) -> None:
        self._results = results

    def finish(self) -> StepResult:
        return self._results.get(timeout=30.0).unwrap()


class Pipeline:
    """Stages in threads, used like one ModelRunner.

    Attributes:
      records: what each stage has sent and received.
      plans: all that were launched.
    """

    def __init__(
        self,
        stages: tuple[LoadedStage, ...],
        *,
        exchanges_always: bool = False,
        **settings: Any,
    ) -> None:
        self.records: list[list[tuple[str, Transfer]]] = [[] for _ in stages]
        self.plans: list[StepPlan] = []
        self.runners = []
        self._channels = make_queue_channels(len(stages))
        self._work: list[SimpleQueue[StepPlan | None]] = [SimpleQueue() for _ in stages]
        self._results: SimpleQueue[outcome.Outcome[StepResult]] = SimpleQueue()
        for stage, channels, record in zip(stages, self._channels, self.records):
            links = StageLinks(
                stage,
                channels,
                exchanges_always=exchanges_always,
                record=record,  # type: ignore[arg-type]
            )
            self.runners.append(ModelRunner(stage, links=links, **settings))
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True)
            for index in range(len(stages))
        ]
        for thread in self._threads:
            thread.start()

    def launch(self, plan: StepPlan) -> Launched:
        self.plans.append(plan)
        for work in self._work:
            work.put(plan)
        return Launched(self._results)

    def stop(self) -> None:
        for work in self._work:
            work.put(None)
        for thread in self._threads:
            thread.join(30.0)

    def _run(self, index: int) -> None:
        runner, is_last = self.runners[index], index == len(self.runners) - 1
        while (plan := self._work[index].get()) is not None:
            result = outcome.capture(lambda: runner.launch(plan).finish())
            if isinstance(result, outcome.Error):
                self._results.put(result)
                for channels in self._channels:
                    for channel in (channels.after, channels.tokens):
                        if channel is not None:
                            channel.close()  # type: ignore[attr-defined]
                return
            if is_last:
                self._results.put(result)
            else:
                assert result.unwrap() == StepResult(step_id=plan.step_id, sampled=())


@pytest.fixture
def make_pipeline() -> Iterator[Callable[..., Pipeline]]:
    """Make pipelines that end with the test."""
    made: list[Pipeline] = []

    def make(stages: tuple[LoadedStage, ...], **settings: Any) -> Pipeline:
        made.append(Pipeline(stages, **settings))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.stop()
