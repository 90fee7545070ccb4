"""A server without an address: an engine, and the app that answers requests in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..config import EngineConfig, HttpConfig
from ..http.state import ServerState
from ..processes.interpreter import prepare_interpreter, settle_interpreter
from ..processes.threads.fresh_thread import open_fresh_thread
from .open import open_served_engine

if TYPE_CHECKING:
    from ..server.in_memory import MemoryClient


@asynccontextmanager
async def open_local_client(
    config: EngineConfig, *, process: bool
) -> AsyncIterator[MemoryClient]:
    """Load a model, and answer the requests of the block's body.

    It is for processes that do nothing else, because it changes settings of the interpreter.

    Args:
      process: as in open_engine.

    Raises: as open_served_engine.
    """
    state = ServerState(config=HttpConfig())
    prepare_interpreter()
    async with (
        open_fresh_thread(_import_app) as importing,
        open_served_engine(config, process=process) as state.engine,
    ):
        await importing.wait()
        await settle_interpreter()
        # Imported here and above, so that the engine process starts before.
        from ..server.app import create_http_app
        from ..server.in_memory import MemoryClient, open_lifespan

        app = create_http_app(state)
        async with open_lifespan(app):
            yield MemoryClient(app)


def _import_app() -> object:
    from ..server.app import create_http_app

    return create_http_app
