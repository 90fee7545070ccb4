"""HTTP over an engine, in this process: hypercorn begins before the engine, and ends before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
import logging
from pathlib import Path
import socket
import ssl
from typing import TYPE_CHECKING

import hypercorn.config
import hypercorn.trio
import trio

from ..config import BindConfig, ServeConfig, check_plain_file
from ..errors import InvalidConfig
from ..frontend import PoolingEngine, TextEngine
from ..frontend.models.router import ModelRouter
from ..http.connection import guard_connections, make_config, raise_descriptor_limit
from ..http.state import ServerState
from ..processes.interpreter import (
    keep_imports,
    prepare_interpreter,
    settle_interpreter,
)
from ..processes.threads.fresh_thread import open_fresh_thread
from .address import start_listening

if TYPE_CHECKING:
    from ..server.app import ServingApp


logger = logging.getLogger(__name__)

# A file on a network that hangs must not delay other signals for longer.
_RELOAD_SECONDS = 5.0


class HttpServer:
    """Serves one socket.

    Args:
      sock: bound; the server listens and closes it.

    Attributes:
      state: all that handlers share.

    Raises:
      InvalidConfig: a key or a certificate cannot be used.
    """

    def __init__(self, config: ServeConfig, sock: socket.socket) -> None:
        self._config = config
        self._sock = sock
        self.state = ServerState(config=config.http)
        self._tls = (
            None if config.bind.tls_certfile is None else TlsContext(config.bind)
        )
        self._reloading = trio.CapacityLimiter(1)

    async def serve(
        self,
        open_engine: Callable[
            [], AbstractAsyncContextManager[TextEngine | PoolingEngine | ModelRouter]
        ],
        on_ready: Callable[[str], None],
        wait_end: Callable[[], Awaitable[None]],
        *,
        waits_for_engine: bool = False,
    ) -> None:
        """Load the model, and serve. Probes are answered meanwhile; other requests get 503.

        Args:
          on_ready: is called with the address when requests are answered.
          wait_end: returns when no request is left after a drain, and the server may end.
          waits_for_engine: listen after the load alone, because others serve the address.

        Raises:
          StartupError: the model cannot be served.
        """
        raise_descriptor_limit()
        guard_connections(self._config.http)
        trio.lowlevel.add_instrument(self.state.loop_stall)
        prepare_interpreter()
        http = _Http()
        if not waits_for_engine:
            http.may_listen.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_http, http, wait_end)
            async with open_engine() as engine:
                try:
                    await settle_interpreter()
                    self.state.serve(engine)
                    http.may_listen.set()
                    on_ready(await http.wait_address())
                    await http.has_ended.wait()
                finally:
                    # Requests end before the engine does.
                    http.scope.cancel()
                    with trio.CancelScope(shield=True):
                        await http.has_ended.wait()

    async def _run_http(
        self, http: _Http, wait_end: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with http.scope:
                async with open_fresh_thread(_import_app) as importing:
                    create_app = await importing.wait()
                await http.may_listen.wait()
                with self.state.recording():
                    async with trio.open_nursery() as nursery:
                        app = create_app(self.state)
                        binds = await nursery.start(self._serve_http, app, wait_end)
                        http.note_address(binds[0])
        finally:
            http.has_ended.set()

    async def reload(self) -> None:
        """Read keys and certificates again, and open the request log again."""
        if self.state.request_log is not None:
            self.state.request_log.reopen()
        parts: dict[str, Callable[[], None]] = {}
        if self._config.http.api_key_file is not None:
            parts["keys"] = self.state.keys.reload
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

    def log_stalls(self) -> None:
        for line in self.state.loop_stall.describe().splitlines():
            logger.info("event loop: %s", line)

    async def _serve_http(  # noqa: ASYNC128 (hypercorn calls started)
        self,
        app: ServingApp,
        wait_end: Callable[[], Awaitable[None]],
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
            app, config, shutdown_trigger=wait_end, task_status=task_status
        )


class _Http:
    """HTTP that runs beside the load of the model.

    Attributes:
      scope: ends it.
      may_listen: clients may connect.
      has_ended: no request is left.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.may_listen = trio.Event()
        self.has_ended = trio.Event()
        self._listens = trio.Event()
        self._address = ""

    def note_address(self, address: str) -> None:
        self._address = address
        self._listens.set()

    async def wait_address(self) -> str:
        await self._listens.wait()
        return self._address


def _import_app() -> Callable[[ServerState], ServingApp]:
    # Here and not above, so that the engine process starts before and loads meanwhile.
    from ..server.app import create_http_app

    keep_imports()
    return create_http_app


def _is_no_address(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Running on ")


class TlsContext:
    """The context of all connections; later ones get a certificate read again.

    Args:
      config: has a certificate.

    Attributes:
      context: with hypercorn's choice of protocols and ciphers.

    Raises:
      InvalidConfig: the files cannot be used.
    """

    def __init__(self, config: BindConfig) -> None:
        self._config = config
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again; after an error, the certificate stays as it was.

        Raises:
          InvalidConfig
        """
        # First into another context, because a wrong pair would leave half of it in this one.
        self._load()
        assert self._config.tls_certfile is not None, "the server has a certificate"
        self.context.load_cert_chain(
            self._config.tls_certfile, self._config.tls_keyfile
        )

    def _load(self) -> ssl.SSLContext:
        for path in (self._config.tls_certfile, self._config.tls_keyfile):
            if path is not None:
                check_plain_file("tls_certfile", Path(path))
        config = hypercorn.config.Config()
        config.certfile = self._config.tls_certfile
        config.keyfile = self._config.tls_keyfile
        # Without a password, OpenSSL would ask for it on the terminal.
        config.keyfile_password = ""
        try:
            context = config.create_ssl_context()
        except ssl.SSLError as error:
            reason = error.reason or "they are not PEM, or the key has a password"
            raise InvalidConfig(
                "tls_certfile", f"cannot use it with --tls-keyfile: {reason}"
            ) from None
        except OSError as error:
            raise InvalidConfig(
                "tls_certfile", f"cannot read it, or --tls-keyfile: {error.strerror}"
            ) from None
        assert context is not None, "there are a certificate and a key"
        return context
