"""Pipelines whose stages are threads, and the whole models to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
import threading
from typing import Any

import outcome
import pytest
import torch
from torch import Tensor

from trioserve.model.ends.stage import StageEnds
from trioserve.model.runner import ModelRunner
from trioserve.model.shards.group import StageLost
from trioserve.model.stages.links import Channels, StageLinks
from trioserve.model.stages.stage import LoadedStage
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan

# A message: "send" or "receive", "hidden" or "sampled", number of rows.
Note = tuple[str, str, int]


class QueueChannel:
    """A Channel between two threads, whose messages are the tensors themselves.

    Args:
      what: "hidden" or "sampled".
      record: the list to which this end adds its messages, in order.
    """

    def __init__(
        self, what: str, queue: SimpleQueue[Tensor | None], record: list[Note]
    ) -> None:
        self._what = what
        self._queue = queue
        self._record = record

    def send(self, tensor: Tensor) -> None:
        self._record.append(("send", self._what, len(tensor)))
        self._queue.put(tensor)

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> Expected:
        return Expected(self, shape, dtype)

    def receive(self) -> Tensor:
        try:
            # A stage in a thread can fail, but it cannot be killed.
            tensor = self._queue.get(timeout=60.0)
        except Empty:
            raise StageLost("another stage is silent") from None
        if tensor is None:
            raise StageLost("another stage has ended")
        self._record.append(("receive", self._what, len(tensor)))
        return tensor

    def close(self) -> None:
        """Tell the receiver that no more messages follow."""
        self._queue.put(None)


@dataclass(frozen=True)
class Expected:
    """The next message of a QueueChannel."""

    channel: QueueChannel
    shape: tuple[int, ...]
    dtype: torch.dtype

    def wait(self) -> Tensor:
        tensor = self.channel.receive()
        assert (tensor.shape, tensor.dtype) == (self.shape, self.dtype)
        return tensor


def make_queue_channels(records: Sequence[list[Note]]) -> list[Channels]:
    """Connect stages by queues.

    Args:
      records: one list for each stage, to which it adds its messages.
    """
    last = len(records) - 1
    between: list[Any] = [SimpleQueue() for _ in range(last)]
    tokens: Any = SimpleQueue()

    def connect(stage: int, what: str, queue: Any) -> QueueChannel:
        return QueueChannel(what, queue, records[stage])

    return [
        Channels(
            before=connect(stage, "hidden", between[stage - 1]) if stage else None,
            after=connect(stage, "hidden", between[stage]) if stage < last else None,
            tokens=connect(stage, "sampled", tokens) if stage in (0, last) else None,
        )
        for stage in range(last + 1)
    ]


class Launched:
    """A step that all stages have received."""

    def __init__(self, results: SimpleQueue[outcome.Outcome[StepResult]]) -> None:
        self._results = results

    def finish(self) -> StepResult:
        return self._results.get(timeout=30.0).unwrap()


class Pipeline:
    """Stages in threads, used like one ModelRunner.

    Attributes:
      records: for each stage, the messages that it has sent and received.
      plans: all plans that were launched.
    """

    def __init__(
        self,
        stages: tuple[LoadedStage, ...],
        *,
        links_type: type[StageLinks] = StageLinks,
        **settings: Any,
    ) -> None:
        self.records: list[list[Note]] = [[] for _ in stages]
        self.plans: list[StepPlan] = []
        self.runners = []
        self._channels = make_queue_channels(self.records)
        self._work: list[SimpleQueue[StepPlan | None]] = [SimpleQueue() for _ in stages]
        self._results: SimpleQueue[outcome.Outcome[StepResult]] = SimpleQueue()
        for stage, channels in zip(stages, self._channels):
            links = links_type(stage, channels)
            self.runners.append(ModelRunner(stage, ends=StageEnds(links), **settings))
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
