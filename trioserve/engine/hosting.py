"""The other side of remote.py: a core that serves whoever started its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import trio

from ..processes import MessageStream
from ..steps import SequenceId, SequenceOutput
from .core import LocalCore, SequenceGroup
from .messages import (
    Abort,
    AbortInputs,
    Add,
    AddInputs,
    CloseFlow,
    PoolingReport,
    Report,
)
from .pooling_core import LocalPoolingCore, PoolingOutputs

# How often the engine tells that it is there, at least.
BEAT_SECONDS = 1.0


async def host_core(core: LocalCore, stream: MessageStream[Any]) -> None:
    """Serve a core until its only client has gone.

    Raises: what a step raises, and PeerGone.
    """
    await _Host(core, stream).run()


async def host_pooling_core(core: LocalPoolingCore, stream: MessageStream[Any]) -> None:
    """The same for one that pools."""
    await _PoolingHost(core, stream).run()


class _Host:
    def __init__(self, core: LocalCore, stream: MessageStream[Any]) -> None:
        self._core = core
        self._stream = stream
        # Groups that are not among the core's yet, by their first sequence.
        self._adding: dict[SequenceId, trio.CancelScope] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._core.run, self._deliver)
            nursery.start_soon(_beat, self._report)
            while True:
                match await self._stream.receive():
                    case Add(group=group):
                        scope = self._adding[group.first_id] = trio.CancelScope()
                        nursery.start_soon(self._add, group, scope)
                    case Abort(sequence_ids=sequence_ids):
                        self._abort(sequence_ids)
                    case message:
                        raise AssertionError(f"{message} is not for this engine")

    async def _add(self, group: SequenceGroup, scope: trio.CancelScope) -> None:
        with scope:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._core.add(group)
        del self._adding[group.first_id]

    def _abort(self, sequence_ids: tuple[SequenceId, ...]) -> None:
        for sequence_id in sequence_ids:
            if scope := self._adding.get(sequence_id):
                scope.cancel()
        self._core.abort(sequence_ids)
        self._report()

    def _deliver(self, outputs: Iterable[SequenceOutput]) -> None:
        self._report(tuple(outputs))

    def _report(self, outputs: tuple[SequenceOutput, ...] = ()) -> None:
        self._stream.send_nowait(
            Report(
                outputs=outputs,
                statistics=self._core.statistics(),
                counters=self._core.counters(),
                stalled_seconds=self._core.stalled_seconds(),
            )
        )


class _PoolingHost:
    def __init__(self, core: LocalPoolingCore, stream: MessageStream[Any]) -> None:
        self._core = core
        self._stream = stream

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._core.run, self._deliver)
            nursery.start_soon(_beat, self._report)
            while True:
                match await self._stream.receive():
                    case AddInputs(batch=batch):
                        self._core.add(batch)
                    case AbortInputs(jobs=jobs):
                        self._core.abort(jobs)
                        self._report()
                    case CloseFlow(flow=flow, kept=kept):
                        self._core.close(flow, kept)
                        self._report()
                    case message:
                        raise AssertionError(f"{message} is not for this engine")

    def _deliver(self, outputs: PoolingOutputs) -> None:
        self._report(tuple(outputs))

    def _report(self, outputs: PoolingOutputs = ()) -> None:
        self._stream.send_nowait(
            PoolingReport(
                outputs=tuple(outputs),
                statistics=self._core.statistics(),
                counters=self._core.counters(),
                stalled_seconds=self._core.stalled_seconds(),
            )
        )


async def _beat(report: Callable[[], None]) -> None:
    while True:
        report()
        await trio.sleep(BEAT_SECONDS)
