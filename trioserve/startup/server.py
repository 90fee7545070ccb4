"""`trioserve serve`: signals outside, and inside one of

    one process         one_process.py: HTTP inside the engine's block
    several models     models.py: HTTP inside the block of their router
    HTTP processes     supervisor.py: HTTP in several processes, and the engine in another

The first signal drains, the second cancels; SIGUSR1 logs the stalls of the event loop. At the
longest a stop takes drain_timeout, two seconds for the ends of streams, and one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
import ipaddress
import logging
import signal
import socket
import time
from typing import Protocol

import trio

from ..config import HttpConfig, ServeConfig, ServedModel
from ..config.flags import write_flags
from ..errors import EngineDied, EngineProcessDied, StartupError, find_first
from ..processes.http_link import HttpProcessDied
from ..types.version import __version__

logger = logging.getLogger(__name__)

# With the time, the level and the name of the logger before it a line has 120 characters.
_LINE_LENGTH = 64


class Service(Protocol):
    """The parts of a server that serve."""

    @property
    def is_draining(self) -> bool: ...

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Load the model, and serve until drained.

        Args:
          on_ready: is called with the address.
        """

    def begin_drain(self) -> None: ...

    async def reload(self) -> None:
        """Read keys and certificates again, and open the request log again."""

    def log_stalls(self) -> None: ...


class Server:
    """One run of `trioserve serve`.

    Args:
      sock: bound, not listening.
      models: several models; empty if there is one, which is in `config`.

    Raises:
      InvalidConfig: a key or a certificate cannot be used.
    """

    def __init__(
        self,
        config: ServeConfig,
        sock: socket.socket,
        models: Sequence[ServedModel] = (),
    ) -> None:
        self._config = config
        self._models = models
        self._address = sock.getsockname()
        self._service = self.make_service(config, sock)
        self._everything = trio.CancelScope()
        self._exit_code = 0
        self._is_ready = False
        self._began = time.perf_counter()

    def make_service(self, config: ServeConfig, sock: socket.socket) -> Service:
        # Imported here, because each of them needs modules that the others do not.
        if self._models:
            from .models import SeveralModels

            return SeveralModels(config, self._models, sock)
        if config.bind.api_processes > 1:
            from .supervisor import Supervisor

            return Supervisor(config, sock)
        from .one_process import OneProcess

        return OneProcess(config, sock)

    async def run(self) -> int:
        """Serve until a signal; returns the exit code.

        Raises:
          StartupError: the model cannot be served.
        """
        failure: StartupError | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._everything = nursery.cancel_scope
                await nursery.start(self._watch_signals)
                for line in describe_config(self._config, self._models):
                    logger.info("%s", line)
                if is_open_to_others(self._config.http, self._address):
                    logger.warning(
                        "--host %s lets everybody who reaches this machine use the model; "
                        "--api-key-file asks for keys",
                        self._config.bind.host,
                    )
                await self._service.serve(self._note_ready)
                nursery.cancel_scope.cancel()
            self._service.log_stalls()
        except* StartupError as errors:
            failure = find_first(errors)
        except* Exception as errors:
            # The engine has logged the cause. This line repeats it, last and short.
            error = find_first(errors)
            cause = error.__cause__ if isinstance(error, EngineDied) else error
            is_http = isinstance(cause, HttpProcessDied)
            is_told = is_http or isinstance(cause, EngineProcessDied)
            text = str(cause) if is_told else repr(cause)
            part = "an HTTP process" if is_http else "the engine"
            logger.critical("%s failed, so the server ends: %s", part, text)
            self._exit_code = 3
        # Outside of the clause; see render/workers/together.py.
        if failure is not None:
            raise failure from None
        return self._exit_code

    def _note_ready(self, address: str) -> None:
        self._is_ready = True
        seconds = time.perf_counter() - self._began
        logger.info("ready after %.1f s on %s", seconds, address)

    async def _watch_signals(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        # SIGUSR1 kills a process that does not receive it, such as a server that ends.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
        if self._reads_again:
            # Elsewhere it means that the terminal was closed, and ends the server.
            numbers.append(signal.SIGHUP)
        with trio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for signum in signals:
                if signum == signal.SIGUSR1:
                    self._service.log_stalls()
                elif signum == signal.SIGHUP:
                    await self._service.reload()
                else:
                    self._stop(signum)

    @property
    def _reads_again(self) -> bool:
        """True if SIGHUP has a meaning."""
        http = self._config.http
        files = (http.api_key_file, http.request_log, self._config.bind.tls_certfile)
        return any(each is not None for each in files)

    def _stop(self, signum: int) -> None:
        if not self._is_ready:
            logger.info("stopped before it was ready")
            self._everything.cancel()
        elif self._service.is_draining:
            self._exit_code = 128 + signum
            self._everything.cancel()
        else:
            self._service.begin_drain()


def is_open_to_others(config: HttpConfig, address: object) -> bool:
    """Return whether other machines reach a server that has no keys.

    Args:
      address: of its socket; a text for a Unix socket.
    """
    has_keys = bool(config.api_key or config.api_key_file)
    return (
        not has_keys
        and isinstance(address, tuple)
        and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
    )


def describe_config(
    config: ServeConfig, models: Sequence[ServedModel] = ()
) -> list[str]:
    """Return lines for the log: the model, and the options that are not the defaults."""
    secrets = ("***",) * len(config.http.api_key)
    config = replace(config, http=replace(config.http, api_key=secrets))
    names = ", ".join(each.names[0] for each in models) or config.engine.model.model
    lines = [f"trioserve {__version__} serves {names}"]
    start = ""
    for flag in write_flags(config):
        if flag.startswith("--model "):
            continue
        if start and len(f"{start} {flag}") > _LINE_LENGTH:
            lines.append(start)
            start = ""
        start = f"{start} {flag}" if start else f"with {flag}"
    return [*lines, start] if start else lines
