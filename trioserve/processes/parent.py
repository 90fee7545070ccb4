"""The side of the child: a process that ends with its parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
import ctypes
import logging
import os
import signal
import sys
from typing import Any, NoReturn

import trio

from .interpreter import prepare_interpreter
from .messages import Descriptor, MessageStream, PeerGone

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1

# The exit code of a server whose engine has failed.
FAILED = 3

# The longest time between two signs of life of a process.
_BEAT_SECONDS = 1.0


def run_as_child(
    main: Callable[[MessageStream[Any]], Awaitable[None]], *, receives: Any
) -> None:
    """Run the main function of a child process, which never returns from here.

    The process ends with its parent: the system kills it, and it ends by itself when the
    connection is closed, whichever comes first.

    Args:
      main: receives all the time, so that it notices a closed connection.
    """
    ignore_stops()
    sock = Descriptor(int(sys.argv[1])).take_socket()

    async def run() -> None:
        await serve_peer(main, sock, receives=receives)

    run_with_parent(run, parent=int(sys.argv[2]))


def ignore_stops() -> None:
    """Leave stops to the parent, which may get the same signal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def run_with_parent(main: Callable[[], Awaitable[None]], *, parent: int) -> NoReturn:
    """Run a function, and end the process with it: with the code 0, or FAILED if it fails.

    The system kills the process when its parent has ended. The process ends at once, and
    does not wait for threads that a device keeps busy.
    """
    die_with_parent(parent)
    prepare_interpreter()
    code = FAILED
    try:
        trio.run(main)
        code = 0
    except BaseException:
        logger.critical("this process ends", exc_info=True)
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


async def beat(tell: Callable[[], None]) -> None:
    """Call `tell` again and again, until cancelled."""
    while True:
        tell()
        await trio.sleep(_BEAT_SECONDS)


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when the process that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the request.
    if os.getppid() != parent:
        os._exit(0)


class _DrivingStream(MessageStream[Any]):
    """A stream to the process for which this one exists.

    Args:
      farewell: a message for the log at the end; None if another process reports it.
    """

    def __init__(
        self, sock: trio.socket.SocketType, receives: Any, farewell: str | None
    ) -> None:
        super().__init__(sock, receives)
        self._farewell = farewell

    async def _fill(self, num_bytes: int) -> None:
        try:
            await super()._fill(num_bytes)
        except PeerGone:
            # The other process has closed the connection, so this one ends.
            if self._farewell is not None:
                logger.info("%s", self._farewell)
            os._exit(0)


async def serve_peer(
    main: Callable[[MessageStream[Any]], Awaitable[None]],
    sock: trio.socket.SocketType,
    *,
    receives: Any,
    farewell: str | None = None,
) -> None:
    """Run a function for another process; end this process with the connection.

    Args:
      main: receives all the time, so that it notices a closed connection.
      farewell: logged at the end.
    """
    stream = _DrivingStream(sock, receives, farewell)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        await main(stream)
        nursery.cancel_scope.cancel()
