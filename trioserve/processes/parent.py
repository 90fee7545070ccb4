"""What a process does that has a parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
import ctypes
import logging
import os
import signal
import socket
import sys
from typing import Any

import trio

from .messages import MessageStream, PeerGone

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1

# As the server ends when its engine has failed.
FAILED = 3


def run_as_child(
    main: Callable[[MessageStream[Any]], Awaitable[None]], *, receives: Any
) -> None:
    """Run the main function of a child process, which never returns from here.

    The process ends with its parent: the system kills it, and it ends by itself when the
    connection is closed, whichever comes first. It ends at once: threads that a device
    keeps busy are not waited for.

    Args:
      main: has always something to receive.
    """
    # Stops are the parent's business, who may get them at the same time.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(int(sys.argv[2]))
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(False)
    try:
        trio.run(_run, main, sock, receives)
    except BaseException:
        logger.critical("this process ends", exc_info=True)
        raise
    finally:
        sys.stderr.flush()
        os._exit(FAILED)


def die_with_parent(parent: int) -> None:
    """Ask the system to kill this process when the one that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before it was asked.
    if os.getppid() != parent:
        os._exit(0)


class _ParentStream(MessageStream[Any]):
    async def receive(self) -> Any:
        try:
            return await super().receive()
        except PeerGone:
            # The parent has left, which is how we end.
            os._exit(0)


async def _run(
    main: Callable[[MessageStream[Any]], Awaitable[None]],
    sock: socket.socket,
    receives: Any,
) -> None:
    stream = _ParentStream(trio.socket.from_stdlib_socket(sock), receives=receives)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        await main(stream)
