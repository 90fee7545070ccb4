"""The app of trioserve.asgi: hypercorn owns the sockets and the process."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
import logging
import multiprocessing
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import trio

from ..config import (
    DEFAULT_MODEL,
    EngineConfig,
    HttpConfig,
    ProcessConfig,
    build_config,
)
from ..config.keywords import naming_keywords
from ..errors import StartupError, find_first
from ..http.connection import guard_connections
from ..http.state import ServerState
from ..processes.interpreter import prepare_interpreter, settle_interpreter
from ..server.app import ServingApp, create_http_app
from .open import open_served_engine

logger = logging.getLogger(__name__)

_NEEDS_TRIO = (
    "trioserve: run hypercorn with -k trio: trioserve does not run on asyncio, which is "
    "hypercorn's default"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AppConfig:
    engine: EngineConfig
    process: ProcessConfig
    http: HttpConfig


def create_app(model: str = DEFAULT_MODEL, **options: object) -> ServingApp:
    """Make the app; the model is loaded when hypercorn starts the app.

    Args:
      model: as on the command line.
      options: options of `trioserve serve`, by name, except for address and log.

    Raises:
      SystemExit: hypercorn runs more than one worker, or runs the app on asyncio.
      InvalidConfig: an option is unknown or has a wrong value. Under hypercorn's command
        this is a SystemExit, too.
    """
    _refuse_asyncio()
    _refuse_workers()
    _accept_sigint()
    # hypercorn's command owns the process, and reports errors as tracebacks. Its
    # loader stands there. A program that serves the app by hypercorn handles its errors.
    is_hypercorns = _is_called_by("hypercorn.utils")
    try:
        with naming_keywords():
            config = build_config(_AppConfig, {"model": model, **options})
            state = ServerState(config=config.http)
    except StartupError as error:
        if is_hypercorns:
            raise SystemExit(f"trioserve: {error}") from None
        raise
    guard_connections(config.http)
    app = create_http_app(state)

    async def start() -> None:
        prepare_interpreter()
        trio.lowlevel.add_instrument(app.state.loop_stall)
        try:
            await app.nursery.start(_run_engine, app.state, config)
        except* StartupError as errors:
            if not is_hypercorns:
                raise
            sys.stderr.write(f"trioserve: {find_first(errors)}\n")
            logging.shutdown()
            os._exit(2)
        app.nursery.start_soon(_drain_on_signal, app.state)

    app.before_serving(start)
    app.asgi_app = _OnTrio(app.asgi_app)  # type: ignore[method-assign]
    return app


class _OnTrio:
    """Refuses to run on asyncio.

    create_app refuses hypercorn's command. This is for programs that make the app first and
    then serve it: the server would go on without an engine, and answer with empty 500s.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if trio.lowlevel.in_trio_run():
            await self._app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.failed", "message": _NEEDS_TRIO})
        else:
            raise RuntimeError(_NEEDS_TRIO)


async def _run_engine(
    state: ServerState,
    config: _AppConfig,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    is_serving = False
    try:
        async with open_served_engine(
            config.engine,
            process=config.process.engine_process,
            naming=naming_keywords(),
        ) as state.engine:
            is_serving = True
            state.has_loaded.set()
            await settle_interpreter()
            with state.recording():
                task_status.started()
                await trio.sleep_forever()
    except* Exception:
        if not is_serving:
            raise
        # hypercorn would log the error, go on without an engine, and end with 0 later.
        # A supervisor would not restart a server that looks alive.
        logger.critical("the engine failed, so the server ends", exc_info=True)
        logging.shutdown()
        os._exit(3)


async def _drain_on_signal(state: ServerState) -> None:
    """Let the first signal drain and the second end the drain.

    SIGTERM would kill hypercorn without workers at once, and SIGINT would raise
    KeyboardInterrupt in the task that runs, such as a client's stream. Workers ignore
    Ctrl-C: their parent stops them.
    """
    is_worker = multiprocessing.parent_process() is not None
    signals = (signal.SIGTERM,) if is_worker else (signal.SIGTERM, signal.SIGINT)
    with trio.open_signal_receiver(*signals) as received:
        await anext(received)
        state.lifecycle.begin_drain()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_next, received, nursery.cancel_scope)
            await state.finish_drain()
            nursery.cancel_scope.cancel()
    _interrupt_hypercorn()


async def _cancel_on_next(
    received: AsyncIterator[int], scope: trio.CancelScope
) -> None:
    await anext(received)
    scope.cancel()


@trio.lowlevel.enable_ki_protection
def _interrupt_hypercorn() -> None:
    # Only SIGINT stops hypercorn gracefully. Without the protection, KeyboardInterrupt
    # would be raised here, in a task that is not hypercorn's.
    signal.raise_signal(signal.SIGINT)


def _accept_sigint() -> None:
    """Accept SIGINT, which background processes of scripts ignore at first.

    Nothing else stops hypercorn without workers: SIGTERM would drain and then wait
    forever. Workers ignore the signal on purpose: their parent stops them.
    """
    is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    is_main = threading.current_thread() is threading.main_thread()
    if is_deaf and is_main and multiprocessing.parent_process() is None:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _refuse_asyncio() -> None:
    """End the process if the app would be run on asyncio.

    Raises:
      SystemExit
    """
    if _is_in_asyncio() or _is_called_by("hypercorn.asyncio"):
        raise SystemExit(_NEEDS_TRIO)


def _is_in_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_called_by(package: str) -> bool:
    """Return whether a function of a package or module is among the callers.

    hypercorn's worker makes the app before it starts an event loop, so there is no loop to
    look at. A flag, a file or a program may have chosen the worker. In each case it is
    among the callers.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == package or name.startswith(f"{package}."):
            return True
        frame = frame.f_back
    return False


def _refuse_workers() -> None:
    """End the process if hypercorn was told to run several.

    Raises:
      SystemExit: each worker would load the model again, and a client's requests
        would meet different prefix caches; one engine is as fast as the device.
    """
    # A spawned worker has the parent's argv.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-w", "--workers", type=int, default=1)
    known, _ = parser.parse_known_args(sys.argv[1:])
    number = multiprocessing.current_process()._identity
    if known.workers > 1 or (number and number[0] > 1):
        raise SystemExit(
            "trioserve: run hypercorn with -w 0 (or 1): each further worker would load "
            "the model once more and split the batch and the prefix cache, which makes "
            "all of them slower"
        )
