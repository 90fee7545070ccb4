"""Cores behind a connection in the same event loop, so they can run in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import trio

from ..engine.process.core_server import host_core
from ..engine.process.messages import FromEngine, ToEngine
from ..engine.process.remote import RemoteCore, RemotePoolingCore
from ..processes import MessageStream

_Stream = MessageStream[Any]


@contextmanager
def open_streams(*, ours: Any, theirs: Any) -> Iterator[tuple[_Stream, _Stream]]:
    """Open both ends of a connection; the caller runs them.

    Args:
      ours, theirs: types of the messages that each end receives.
    """
    sockets = trio.socket.socketpair()
    with sockets[0], sockets[1], ExitStack() as stack:
        streams = []
        for sock, receives in zip(sockets, (ours, theirs)):
            stream = _Stream(sock, receives=receives)
            stack.callback(stream.close)
            streams.append(stream)
        yield streams[0], streams[1]


async def _describe_end() -> str:
    await trio.lowlevel.checkpoint()
    return "the other side has gone"


async def _serve(core: Any, stream: _Stream) -> None:
    """Serve a core; close the connection if it fails, as the end of a process would."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        try:
            await host_core(core, stream)
        except Exception:
            stream.close()
        nursery.cancel_scope.cancel()


class _Nowhere:
    """The stream of a core that does not run yet; it drops all messages."""

    def send_nowait(self, message: object) -> None:
        pass


class _Hosted:
    """A remote core with both sides of its connection.

    Args:
      core: the core on the far side.
    """

    sleep: Any

    def __init__(self, core: Any) -> None:
        remote: Any = super()
        remote.__init__(_Nowhere(), _describe_end)
        self._core = core
        self._is_open = False

    def statistics(self) -> Any:
        # Tests compare with the statistics of a new core, which does not run yet.
        remote: Any = super()
        return (remote if self._is_open else self._core).statistics()

    async def run(
        self,
        deliver: Callable[[Any], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        remote: Any = super()
        on_sleep = self.sleep.on_change
        with open_streams(ours=FromEngine, theirs=ToEngine) as (ours, theirs):
            remote.__init__(ours, _describe_end)
            self.sleep.on_change = on_sleep
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_serve, self._core, theirs)
                await nursery.start(remote.run, deliver)
                self._is_open = True
                task_status.started()


class HostedCore(_Hosted, RemoteCore):
    """A GenerationCore in this event loop, behind a connection."""


class HostedPoolingCore(_Hosted, RemotePoolingCore):
    """A PoolingCore in this event loop, behind a connection."""
