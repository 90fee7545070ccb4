"""A server whose HTTP runs in the process of the command."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import socket

from ..config import ServeConfig
from .http_server import HttpServer
from .open import open_served_engine


class OneProcess:
    """HTTP in this process, and the engine in this or another one.

    Args:
      sock: bound, not listening.

    Raises:
      InvalidConfig: a key or a certificate cannot be used.
    """

    def __init__(self, config: ServeConfig, sock: socket.socket) -> None:
        self._open_engine = partial(
            open_served_engine, config.engine, process=config.process.engine_process
        )
        self._server = HttpServer(config, sock)

    @property
    def is_draining(self) -> bool:
        return self._server.state.lifecycle.is_draining

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        await self._server.serve(
            self._open_engine, on_ready, self._server.state.finish_drain
        )

    def begin_drain(self) -> None:
        self._server.state.lifecycle.begin_drain()

    async def reload(self) -> None:
        await self._server.reload()

    def log_stalls(self) -> None:
        self._server.log_stalls()
