"""`trioserve serve`: hypercorn inside the engine's nursery, and signals outside both.

    signals          the first drains, the second cancels; SIGUSR1 logs the stalls
      engine         open_engine: loads the model, runs the loop
        http         hypercorn, until drained

A stop leaves the inner block before the outer one. At the longest it takes drain_timeout,
two seconds for the ends of streams, and one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import logging
import signal
import socket
import time
from typing import TYPE_CHECKING

import hypercorn.trio
import trio

from .._version import __version__
from ..config import ServeConfig
from ..config.flags import write_flags
from ..engine import EngineProcessDied
from ..errors import EngineDied, InvalidConfig, StartupError, find_first
from ..http import (
    ServerState,
    guard_connections,
    make_config,
    raise_descriptor_limit,
)
from ..processes.interpreter import prepare_interpreter, settle_interpreter
from ..threads.fresh_thread import open_fresh_thread
from .address import start_listening
from .open import open_served_engine
from .tls import TlsContext

if TYPE_CHECKING:
    from ..http import ServingApp

logger = logging.getLogger(__name__)


# A file on a network that hangs must not delay other signals for longer.
_RELOAD_SECONDS = 5.0

# With the time, the level and the name of the logger before it a line has 120 characters.
_LINE_LENGTH = 64


class Server:
    """One run of `trioserve serve`.

    Args:
      sock: bound, not listening.

    Raises:
      InvalidConfig: a key or a certificate cannot be used.
    """

    def __init__(self, config: ServeConfig, sock: socket.socket) -> None:
        self._config = config
        self._sock = sock
        self._state = ServerState(config=config.http)
        self._tls = (
            None if config.bind.tls_certfile is None else TlsContext(config.bind)
        )
        self._reloading = trio.CapacityLimiter(1)
        self._everything = trio.CancelScope()
        self._exit_code = 0
        self._is_ready = False
        self._began = time.perf_counter()

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
                for line in describe_config(self._config):
                    logger.info("%s", line)
                await self._serve()
                nursery.cancel_scope.cancel()
            self._log_stalls()
        except* StartupError as errors:
            failure = find_first(errors)
        except* Exception as errors:
            # The engine has logged the cause. This line repeats it, last and short.
            error = find_first(errors)
            cause = error.__cause__ if isinstance(error, EngineDied) else error
            text = str(cause) if isinstance(cause, EngineProcessDied) else repr(cause)
            logger.critical("the engine failed, so the server ends: %s", text)
            self._exit_code = 3
        # Outside of the clause; see render/workers/together.py.
        if failure is not None:
            raise failure from None
        return self._exit_code

    async def _serve(self) -> None:
        state = self._state
        raise_descriptor_limit()
        guard_connections(self._config.http)
        trio.lowlevel.add_instrument(state.loop_stall)
        prepare_interpreter()
        async with (
            open_fresh_thread(_import_app) as importing,
            open_served_engine(
                self._config.engine, process=self._config.process.engine_process
            ) as state.engine,
        ):
            create_app = await importing.wait()
            await settle_interpreter()
            with state.recording():
                await self._listen(create_app(state))

    async def _listen(self, app: ServingApp) -> None:
        async with trio.open_nursery() as nursery:
            binds = await nursery.start(self._serve_http, app)
            self._is_ready = True
            seconds = time.perf_counter() - self._began
            logger.info("ready after %.1f s on %s", seconds, binds[0])

    async def _serve_http(
        self,
        app: ServingApp,
        *,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        # hypercorn logs the address, too, and has no option to turn that off.
        logging.getLogger("hypercorn.error").addFilter(_is_no_address)
        # hypercorn takes the descriptor over and closes it. It would listen by itself, but
        # its error names no flag.
        config = make_config(bind=[])
        start_listening(self._sock, self._config.bind, config.backlog)
        config.bind = [f"fd://{self._sock.detach()}"]
        if self._tls is not None:
            config.certfile = self._config.bind.tls_certfile
            config.keyfile = self._config.bind.tls_keyfile
            context = self._tls.context
            config.create_ssl_context = lambda: context  # type: ignore[method-assign]
        await hypercorn.trio.serve(
            app,
            config,
            shutdown_trigger=self._state.finish_drain,
            task_status=task_status,
        )

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
                    self._log_stalls()
                elif signum == signal.SIGHUP:
                    await self._reload()
                else:
                    self._stop(signum)

    @property
    def _reads_again(self) -> bool:
        """Whether SIGHUP has a meaning."""
        http = self._config.http
        files = (http.api_key_file, http.request_log, self._config.bind.tls_certfile)
        return any(each is not None for each in files)

    async def _reload(self) -> None:
        """Read keys and certificates again, and open the request log again."""
        if self._state.request_log is not None:
            self._state.request_log.reopen()
        parts: dict[str, Callable[[], None]] = {}
        if self._config.http.api_key_file is not None:
            parts["keys"] = self._state.keys.reload
        if self._tls is not None:
            parts["certificate"] = self._tls.reload
        for name, reload in parts.items():
            with trio.move_on_after(_RELOAD_SECONDS) as scope:
                try:
                    await trio.to_thread.run_sync(
                        reload, limiter=self._reloading, abandon_on_cancel=True
                    )
                except InvalidConfig as error:
                    logger.error("%s as before: %s", name, error)
                else:
                    logger.info("%s read again", name)
            if scope.cancelled_caught:
                logger.error("%s as before: the file cannot be read now", name)

    def _stop(self, signum: int) -> None:
        if not self._is_ready:
            logger.info("stopped before it was ready")
            self._everything.cancel()
        elif self._state.lifecycle.is_draining:
            self._exit_code = 128 + signum
            self._everything.cancel()
        else:
            self._state.lifecycle.begin_drain()

    def _log_stalls(self) -> None:
        for line in self._state.loop_stall.describe().splitlines():
            logger.info("event loop: %s", line)


def describe_config(config: ServeConfig) -> list[str]:
    """Return lines for the log: the model, and the options that are not the defaults."""
    secrets = ("***",) * len(config.http.api_key)
    config = replace(config, http=replace(config.http, api_key=secrets))
    lines = [f"trioserve {__version__} serves {config.engine.model.model}"]
    start = ""
    for flag in write_flags(config):
        if flag.startswith("--model "):
            continue
        if start and len(f"{start} {flag}") > _LINE_LENGTH:
            lines.append(start)
            start = ""
        start = f"{start} {flag}" if start else f"with {flag}"
    return [*lines, start] if start else lines


def _import_app() -> Callable[[ServerState], ServingApp]:
    # Here and not above, so that the engine process starts before and loads meanwhile.
    from ..http import create_http_app

    return create_http_app


def _is_no_address(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Running on ")
