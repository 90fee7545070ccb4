"""A child process that ends with its block, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
import os
import signal
import socket
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import trio

from .messages import MessageStream

# The time that a process has to end after it has closed its connection.
_HANG_UP_SECONDS = 1.0

# The time that the system has to end a process, which may hold gigabytes.
_KILL_SECONDS = 30.0

# The most frequent cause, of which the system log has a line.
_OUT_OF_MEMORY = ", as the system does when memory runs out"


class Child:
    """A child process.

    Attributes:
      stream: messages to and from it; it raises PeerGone once the process has died.
      name: for error messages, such as "the engine process".
    """

    def __init__(
        self, process: subprocess.Popen[bytes], stream: MessageStream[Any], name: str
    ) -> None:
        self.stream = stream
        self.name = name
        self._process = process
        self._reaping = trio.CapacityLimiter(1)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, and return the return code, as subprocess defines it."""
        return await trio.to_thread.run_sync(
            self._process.wait, limiter=self._reaping, abandon_on_cancel=True
        )

    async def describe_end(self) -> str:
        """Wait until a process with a closed connection ends; describe its end."""
        code = None
        with trio.move_on_after(_HANG_UP_SECONDS):
            code = await self.wait()
        if code is None:
            await self.kill()
            return f"{self.name} closed its connection but did not end"
        if code < 0:
            number = signal.Signals(-code)
            hint = _OUT_OF_MEMORY if number == signal.SIGKILL else ""
            return f"{self.name} was ended by {number.name}{hint}"
        return f"{self.name} ended with the exit code {code}"

    async def kill(self) -> None:
        """End it now; it has nothing to clean up."""
        self._process.kill()
        await self.wait()


# Processes of start_early that open_child has not taken yet, by their modules.
_early: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}


@contextmanager
def start_early(module: str, *arguments: str) -> Iterator[None]:
    """Start the process of the next open_child of a module already.

    It imports its modules while this process imports its own. It is killed at the end of the
    block if open_child has not taken it.

    Args:
      arguments: as for open_child, which does not look at its own then.
    """
    _early[module] = _start(module, arguments, {})
    try:
        yield
    finally:
        if started := _early.pop(module, None):
            process, sock = started
            sock.close()
            process.kill()
            process.wait()


@asynccontextmanager
async def open_child(
    module: str,
    *arguments: str,
    receives: Any,
    name: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Child]:
    """Run `python -m MODULE DESCRIPTOR OUR_PID ...` until the block is left.

    The module calls run_as_child. It imports from the same folders as this process.

    Args:
      arguments: more of them, behind our pid.
      receives: type of the messages from it.
      name: for error messages, such as "the engine process".
      environment: variables besides ours, for libraries that read them.
    """
    started = _early.pop(module, None) or _start(module, arguments, environment)
    process = started[0]
    with trio.socket.from_stdlib_socket(started[1]) as ours:
        stream = MessageStream[Any](ours, receives=receives)
        child = Child(process, stream, name)
        try:
            yield child
        finally:
            stream.close()
            with trio.move_on_after(_KILL_SECONDS, shield=True):
                await child.kill()


def _start(
    module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process in this thread, and return it with our end of its connection.

    trio would start it in another thread. The system must end the process with its parent.
    For the system the parent is a thread, and trio's threads end when they have been idle for
    a while.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", module),
                *(str(theirs.fileno()), str(os.getpid()), *arguments),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": _list_paths(), **environment},
            # Ctrl-C reaches this process alone, which may let requests end first.
            process_group=0,
        )
    return process, ours


def _list_paths() -> str:
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
