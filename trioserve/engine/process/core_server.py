"""The far side of remote.py: a core that carries out the messages of its client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import trio

from ...observe.process_holdings import inspect_process
from ...processes import MessageStream, beat
from ...types.ids import SequenceId
from ..generation.core import LocalCore, SequenceGroup
from ..pooling.core import LocalPoolingCore
from .messages import (
    AbortInputs,
    AbortSequences,
    AddInputs,
    AddSequences,
    CloseFlow,
    GenerationReport,
    Inspect,
    Inspected,
    PoolingReport,
)


async def host_core(core: LocalCore, stream: MessageStream[Any]) -> None:
    """Serve a core until its only client is gone.

    Raises:
      PeerGone: the client is gone.
      any error of a failed step.
    """
    await _GenerationHost(core, stream).run()


async def host_pooling_core(core: LocalPoolingCore, stream: MessageStream[Any]) -> None:
    """Serve a pooling core; see host_core."""
    await _PoolingHost(core, stream).run()


class _Host:
    """Receives the messages of a client, and reports to it."""

    _report_type: ClassVar[type[GenerationReport] | type[PoolingReport]]

    def __init__(self, core: Any, stream: MessageStream[Any]) -> None:
        self._core = core
        self._stream = stream
        self._num_aborts = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._core.run, self._report)
            nursery.start_soon(beat, self._report)
            while True:
                message = await self._stream.receive()
                if isinstance(message, Inspect):
                    nursery.start_soon(self._inspect, message)
                else:
                    self._take(message, nursery)

    def _take(self, message: object, nursery: trio.Nursery) -> None:
        """Carry out a message of the client."""
        raise NotImplementedError

    async def _inspect(self, question: Inspect) -> None:
        holdings = await self._core.inspect(lost=question.lost)
        if question.process:
            holdings = replace(holdings, process=inspect_process())
        self._stream.send_nowait(Inspected(number=question.number, holdings=holdings))

    def _report_abort(self) -> None:
        self._num_aborts += 1
        self._report()

    def _report(self, outputs: Iterable[Any] = ()) -> None:
        self._stream.send_nowait(
            self._report_type(
                num_aborts=self._num_aborts,
                outputs=tuple(outputs),
                statistics=self._core.statistics(),
                counters=self._core.counters(),
                rates=self._core.rates(),
                stalled_seconds=self._core.stalled_seconds(),
            )
        )


class _GenerationHost(_Host):
    _report_type = GenerationReport

    def __init__(self, core: LocalCore, stream: MessageStream[Any]) -> None:
        super().__init__(core, stream)
        # Groups whose long prompts are still being prepared, by their first sequence.
        self._adding: dict[SequenceId, trio.CancelScope] = {}

    def _take(self, message: object, nursery: trio.Nursery) -> None:
        match message:
            case AddSequences(group=group):
                scope = self._adding[group.first_id] = trio.CancelScope()
                nursery.start_soon(self._add, group, scope)
            case AbortSequences(sequence_ids=sequence_ids):
                self._abort(sequence_ids)
            case _:
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
        self._report_abort()


class _PoolingHost(_Host):
    _report_type = PoolingReport

    def _take(self, message: object, nursery: trio.Nursery) -> None:
        match message:
            case AddInputs(batch=batch):
                self._core.add(batch)
            case AbortInputs(jobs=jobs):
                self._core.abort(jobs)
                self._report_abort()
            case CloseFlow(flow=flow, kept=kept):
                self._core.close(flow, kept)
                self._report_abort()
            case _:
                raise AssertionError(f"{message} is not for this engine")
