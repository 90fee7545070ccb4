"""The far side of remote.py: a core that carries out the messages of its clients.

A server has one client, or one for each of its HTTP processes. Each client numbers its own
work, from a number that only it has (messages.py); so an output shows whose it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import trio

from ...errors import AdapterNotFound, AdapterRefused, InvalidAdapter
from ...observe.process_holdings import inspect_process
from ...processes import MessageStream, PeerGone, beat
from ...types.ids import SequenceId
from ...types.output import SequenceError, TokenDelta
from ...types.tensors import TensorBytes
from ..core import CoreHoldings
from ..generation.core import LocalCore, SequenceGroup
from ..pooling.core import JobId, LocalPoolingCore
from ..sleep.sleeper import CoreSleep
from .messages import (
    AbortInputs,
    AbortSequences,
    AdapterDone,
    AdapterRefusal,
    AdaptersServed,
    AddClient,
    AddInputs,
    AddSequences,
    CloseFlow,
    GenerationReport,
    Inspect,
    Inspected,
    LoadAdapter,
    OrderDone,
    OrderSleep,
    OrderWake,
    PoolingReport,
    ToEngine,
    UnloadAdapter,
    find_client,
)

# A client that gets no output of a step has a report at most this old. It needs the
# state for forecasts and metrics alone.
_STATE_SECONDS: Final = 0.05


async def host_core(
    core: LocalCore | LocalPoolingCore,
    stream: MessageStream[Any],
    *,
    announce: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve a core until its only client is gone.

    Args:
      announce: is called when the core runs, and before the client is served.

    Raises:
      PeerGone: the client is gone.
      any error of a failed step.
    """
    host = CoreHost(core)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        await announce()
        await host.serve_alone(stream)


async def host_clients(
    core: LocalCore | LocalPoolingCore,
    stream: MessageStream[Any],
    *,
    announce: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Serve a core to several clients, each of which comes by a message.

    Args:
      announce: see host_core.

    Raises:
      PeerGone: the process that sends these messages is gone.
      any error of a failed step.
    """
    host = CoreHost(core)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        await announce()
        while True:
            message = await stream.receive()
            assert isinstance(message, AddClient), "nothing else comes from the parent"
            nursery.start_soon(_serve_client, host, message)


async def _serve_client(host: CoreHost, message: AddClient) -> None:
    stream = MessageStream[Any](message.connection.take_socket(), receives=ToEngine)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            await host.serve(message.number, stream)
            nursery.cancel_scope.cancel()
    finally:
        stream.close()


class CoreHost:
    """A core in this process, for clients in other ones."""

    def __init__(self, core: LocalCore | LocalPoolingCore) -> None:
        self._core: Any = core
        is_pooling = isinstance(core, LocalPoolingCore)
        self._client_type = _PoolingClient if is_pooling else _GenerationClient
        if isinstance(core, LocalCore):
            core.adapters.on_change = self._tell_adapters
        # The only client, or all clients by their numbers.
        self._only: _Client | None = None
        core.sleep.on_change = self._tell_all
        self._clients: dict[int, _Client] = {}

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run the core until cancelled; raises the error of a failed step."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._core.run, self._deliver)
            nursery.start_soon(beat, self._tell_all)
            task_status.started()

    async def serve_alone(self, stream: MessageStream[Any]) -> None:
        """Carry out the messages of a client that gets all outputs.

        Raises:
          PeerGone
        """
        self._only = self._client_type(self._core, stream)
        await self._only.serve()

    async def serve(self, number: int, stream: MessageStream[Any]) -> None:
        """Carry out the messages of one of several clients until it is gone.

        Then everything that it has in the core ends.

        Args:
          number: no other client has or had it.
        """
        client = self._clients[number] = self._client_type(self._core, stream)
        try:
            await client.serve(lambda held: self._pick(number, held))
        except PeerGone:
            pass
        finally:
            del self._clients[number]
            self._core.end_all(lambda work: find_client(work) == number)

    def _deliver(self, outputs: Iterable[Any]) -> None:
        if self._only is not None:
            self._only.report(tuple(outputs))
        elif self._clients:
            self._share_out(outputs)

    def _share_out(self, outputs: Iterable[Any]) -> None:
        """Send the outputs of a step, in one message to each client."""
        parts: dict[int, list[Any]] = {number: [] for number in self._clients}
        for output in outputs:
            part = parts.get(find_client(self._client_type.find_id(output)))
            # None for an output of a client that is gone.
            if part is not None:
                part.append(output)
        latest = trio.current_time() - _STATE_SECONDS
        for number, part in parts.items():
            client = self._clients[number]
            if part or client.told_at <= latest:
                client.report(part)

    def _tell_all(self) -> None:
        for client in self._list_clients():
            client.report()

    def _tell_adapters(self) -> None:
        for client in self._list_clients():
            client.tell_adapters()

    def _list_clients(self) -> Iterator[_Client]:
        if self._only is not None:
            yield self._only
        yield from self._clients.values()

    def _pick(self, number: int, held: CoreHoldings) -> CoreHoldings:
        """Leave a client its own work; the first client also gets work without a client."""
        work = tuple(each for each in held.work if find_client(each.id) == number)
        if number == min(self._clients):
            return replace(held, work=work)
        return CoreHoldings(work=work, process=held.process)


class _Client:
    """Receives the messages of a client, and reports to it.

    Attributes:
      told_at: the time of the last report.
    """

    _report_type: ClassVar[type[GenerationReport] | type[PoolingReport]]

    def __init__(self, core: Any, stream: MessageStream[Any]) -> None:
        self._core = core
        self._stream = stream
        self._num_aborts = 0
        self.told_at = 0.0

    async def serve(self, pick: Any = lambda held: held) -> None:
        """Carry out the messages of the client.

        Args:
          pick: chooses the client's part of the things that the core holds.

        Raises:
          PeerGone
        """
        self.tell_adapters()
        self.report()
        gone: PeerGone | None = None
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    message = await self._stream.receive()
                    match message:
                        case Inspect():
                            nursery.start_soon(self._inspect, message, pick)
                        case OrderSleep() | OrderWake():
                            nursery.start_soon(self._obey, message)
                        case _:
                            self._take(message, nursery)
            except PeerGone as error:
                # Kept outside of the nursery, which would make a group of it.
                gone = error
            nursery.cancel_scope.cancel()
        if gone is not None:
            raise gone

    def report(self, outputs: Sequence[Any] = ()) -> None:
        """Send outputs, and the state of the core."""
        self.told_at = trio.current_time()
        self._stream.send_nowait(
            self._report_type(
                num_aborts=self._num_aborts,
                outputs=tuple(outputs),
                statistics=self._core.statistics(),
                counters=self._core.counters(),
                rates=self._core.rates(),
                stalled_seconds=self._core.stalled_seconds(),
                sleep=self._core.sleep.state,
            )
        )

    def tell_adapters(self) -> None:
        """Send the adapters that requests may name."""

    def _take(self, message: object, nursery: trio.Nursery) -> None:
        """Carry out a message of the client."""
        raise NotImplementedError

    @staticmethod
    def find_id(output: Any) -> int:
        """Return the number of the work that an output belongs to."""
        raise NotImplementedError

    async def _inspect(self, question: Inspect, pick: Any) -> None:
        holdings = pick(await self._core.inspect(lost=question.lost))
        if question.process:
            holdings = replace(holdings, process=inspect_process())
        self._stream.send_nowait(Inspected(number=question.number, holdings=holdings))

    async def _obey(self, order: OrderSleep | OrderWake) -> None:
        sleep: CoreSleep = self._core.sleep
        if isinstance(order, OrderSleep):
            await sleep.sleep(order.level, ends_requests=order.ends_requests)
        else:
            await sleep.wake()
        self.report()
        self._stream.send_nowait(OrderDone(number=order.number))

    def _report_abort(self) -> None:
        self._num_aborts += 1
        self.report()


class _GenerationClient(_Client):
    _report_type = GenerationReport

    @staticmethod
    def find_id(output: TokenDelta) -> int:
        return output.sequence_id

    def __init__(self, core: LocalCore, stream: MessageStream[Any]) -> None:
        super().__init__(core, stream)
        # Groups whose long prompts are still being prepared, by their first sequence.
        self._adding: dict[SequenceId, trio.CancelScope] = {}

    def _take(self, message: object, nursery: trio.Nursery) -> None:
        match message:
            case AddSequences(group=group):
                scope = self._adding[group.first_id] = trio.CancelScope()
                # Now, because tasks begin in any order.
                place = self._core.take_place(group)
                nursery.start_soon(self._add, group, place, scope)
            case AbortSequences(sequence_ids=sequence_ids):
                self._abort(sequence_ids)
            case LoadAdapter() | UnloadAdapter():
                nursery.start_soon(self._change_adapters, message)
            case _:
                raise AssertionError(f"{message} is not for this engine")

    async def _add(
        self, group: SequenceGroup, place: int, scope: trio.CancelScope
    ) -> None:
        with scope:
            await trio.lowlevel.checkpoint_if_cancelled()
            try:
                await self._core.add(group, place)
            except AdapterNotFound:
                # It was unloaded while the request was on its way.
                self.report(_refuse(group))
        del self._adding[group.first_id]

    def tell_adapters(self) -> None:
        adapters = self._core.adapters
        self._stream.send_nowait(
            AdaptersServed(
                revision=adapters.revision, served=tuple(adapters.served.values())
            )
        )

    async def _change_adapters(self, message: LoadAdapter | UnloadAdapter) -> None:
        adapters = self._core.adapters
        done = AdapterDone(number=message.number)
        try:
            if isinstance(message, LoadAdapter):
                loaded = await adapters.load(
                    message.name, message.path, replaces=message.replaces
                )
                done = AdapterDone(number=message.number, loaded=loaded)
            else:
                await adapters.unload(message.name)
        except (InvalidAdapter, AdapterRefused, AdapterNotFound) as error:
            refusal = AdapterRefusal.of(error)
            done = AdapterDone(number=message.number, refusal=refusal)
        self._stream.send_nowait(done)

    def _abort(self, sequence_ids: tuple[SequenceId, ...]) -> None:
        for sequence_id in sequence_ids:
            if scope := self._adding.get(sequence_id):
                scope.cancel()
        self._core.abort(sequence_ids)
        self._report_abort()


def _refuse(group: SequenceGroup) -> list[TokenDelta]:
    """Return the end of each sequence of a group whose adapter is not loaded."""
    error = SequenceError(adapter=group.adapter)
    return [
        TokenDelta(sequence_id=SequenceId(number), index=index, error=error)
        for index, number in enumerate(group.list_ids())
    ]


class _PoolingClient(_Client):
    _report_type = PoolingReport

    @staticmethod
    def find_id(output: tuple[JobId, TensorBytes]) -> int:
        return output[0]

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
