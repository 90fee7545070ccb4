"""Cores behind a connection, in the same event loop and so in virtual time, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
import socket
from typing import Any

import trio

from .engine import (
    LocalCore,
    LocalPoolingCore,
    RemoteCore,
    RemotePoolingCore,
    host_core,
    host_pooling_core,
)
from .engine.messages import FromEngine, ToEngine
from .processes import MessageStream

_Stream = MessageStream[Any]
_Run = Callable[..., Awaitable[None]]


@contextmanager
def _open_streams() -> Iterator[tuple[_Stream, _Stream]]:
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        streams = []
        for sock, receives in ((ours, FromEngine), (theirs, ToEngine)):
            sock.setblocking(False)
            stream = _Stream(trio.socket.from_stdlib_socket(sock), receives=receives)
            stack.callback(stream.close)
            streams.append(stream)
        yield streams[0], streams[1]


async def _describe_end() -> str:
    await trio.lowlevel.checkpoint()
    return "the other side has gone"


async def _run_both(
    run: _Run,
    theirs: _Stream,
    host: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[None],
) -> None:
    """Run a core's two sides."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, theirs, host)
        await nursery.start(run)
        task_status.started()


async def _serve(stream: _Stream, host: Callable[[], Awaitable[None]]) -> None:
    """Do what a process does: when it fails, it is gone."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        try:
            await host()
        except Exception:
            stream.close()
        nursery.cancel_scope.cancel()


class HostedCore(RemoteCore):
    """A RemoteCore with both sides of its connection; see _run_both.

    Args:
      core: what it serves.
    """

    def __init__(self, core: LocalCore) -> None:
        self._core = core

    def statistics(self) -> Any:
        # A fresh one's, for comparison, may be asked for before it runs.
        return (
            super().statistics()
            if hasattr(self, "_stream")
            else self._core.statistics()
        )

    async def run(  # noqa: ASYNC128, _run_both calls it
        self,
        deliver: Callable[[Any], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with _open_streams() as (ours, theirs):
            super().__init__(ours, _describe_end)
            await _run_both(
                partial(super().run, deliver),
                theirs,
                partial(host_core, self._core, theirs),
                task_status,
            )


class HostedPoolingCore(RemotePoolingCore):
    """The same for a core that pools."""

    def __init__(self, core: LocalPoolingCore) -> None:
        self._core = core

    def statistics(self) -> Any:
        # A fresh one's, for comparison, may be asked for before it runs.
        return (
            super().statistics()
            if hasattr(self, "_stream")
            else self._core.statistics()
        )

    async def run(  # noqa: ASYNC128, _run_both calls it
        self,
        deliver: Callable[[Any], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with _open_streams() as (ours, theirs):
            super().__init__(ours, _describe_end)
            await _run_both(
                partial(super().run, deliver),
                theirs,
                partial(host_pooling_core, self._core, theirs),
                task_status,
            )
