"""A running engine, opened from a configuration: the door for programs that embed us.

It installs no signal handler and changes nothing global. It starts child processes only
if an option says so. Everything that it starts has ended when its block is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial
import logging
from typing import Any, TypeVar

import trio

from ..config import DEFAULT_MODEL, EngineConfig, build_config
from ..config.keywords import naming_keywords
from ..engine.process.messages import EngineLoaded, FromEngine, StartEngine
from ..engine.process.remote import RemoteCore, RemotePoolingCore
from ..errors import EngineProcessDied, StartupError, find_first
from ..frontend import PoolingEngine, TextEngine
from ..processes import Child, PeerGone, open_child
from ..render import open_template_processes
from ..types.not_loaded import NotLoaded
from .adapters import load_adapters
from .core import open_core
from .engine_process import ENGINE_PROCESS, list_arguments
from .engine_task import open_engine_task
from .frontend import Frontend, LoadedFrontend
from .loaded import LoadedCore
from .shortage import telling_shortage
from .source import ModelKind

CoreT = TypeVar("CoreT")


@asynccontextmanager
async def open_engine(
    model: str | EngineConfig = DEFAULT_MODEL,
    *,
    process: bool = False,
    **options: object,
) -> AsyncIterator[TextEngine]:
    """Load a model that generates, and serve it to the body of the block.

    A cancelled load ends within a second. Only an import goes on longer, in a thread that
    ends after it. The interpreter waits for that thread before it ends.

    Args:
      model: as on the command line, or a whole EngineConfig.
      process: run the engine in a process of its own, which shares no GIL with the
        program; it ends with the block, and with the program.
      options: fields of EngineConfig's parts, by name, where `model` is a string.

    Raises:
      StartupError: the model cannot be found, read or run, it does not generate, or an
        option is wrong.
      RuntimeError: trio does not run here, but perhaps asyncio does.
      errors.EngineDied: the engine failed; __cause__ has the reason.
      ExceptionGroup: the engine failed, and the block raised another error. An error of
        the block passes unchanged while the engine is well.
    """
    with naming_keywords():
        config = _make_config(model, options)
    async with _open(config, "generate", process, naming_keywords()) as engine:
        assert isinstance(engine, TextEngine), "find_source has refused other models"
        yield engine


@asynccontextmanager
async def open_pooling_engine(
    model: str | EngineConfig, *, process: bool = False, **options: object
) -> AsyncIterator[PoolingEngine]:
    """Load a model that embeds, classifies or scores; as open_engine."""
    with naming_keywords():
        config = _make_config(model, options)
    async with _open(config, "pooling", process, naming_keywords()) as engine:
        assert isinstance(engine, PoolingEngine), "find_source has refused other models"
        yield engine


def open_served_engine(
    config: EngineConfig,
    *,
    process: bool,
    naming: AbstractContextManager[None] | None = None,
    origin: str = "",
) -> AbstractAsyncContextManager[TextEngine | PoolingEngine]:
    """Load a model of any kind, and serve it to the block's body.

    Args:
      naming: as in _open; by default errors name flags.
      origin: as in _open.
    """
    return _open(config, "all", process, naming or nullcontext(), origin)


@asynccontextmanager
async def _open(
    config: EngineConfig,
    model_kind: ModelKind,
    process: bool,
    naming: AbstractContextManager[None],
    origin: str = "",
) -> AsyncIterator[TextEngine | PoolingEngine]:
    """Open an engine.

    Args:
      naming: entered while the model is loaded; spells the options in errors.
      origin: a name of the model for the log of its processes, if there are several.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "an engine runs on trio; docs/embedding.rst has two ways for asyncio programs"
        )
    # The cores have a stack of their own, which is closed for each restart.
    async with AsyncExitStack() as stack, AsyncExitStack() as running:
        frontend = Frontend(config, model_kind, is_checked=process)
        cores = _Cores(config, model_kind, process, stack, frontend, origin)
        with naming, telling_shortage():
            core = await cores.open()
            loaded = await frontend.finish(core, cores.reopen)
            await running.enter_async_context(_running(config, loaded))
            if not process:
                await load_adapters(core, config.model)
        yield loaded.served


@asynccontextmanager
async def open_connected_engine(
    config: EngineConfig,
    connect: Callable[[], Awaitable[LoadedCore]],
    *,
    first_id: int,
) -> AsyncIterator[TextEngine | PoolingEngine]:
    """Open an engine on a core that others use, too.

    Args:
      connect: returns the core when its model is loaded.
      first_id: see TokenEngine.

    Raises:
      StartupError
    """
    frontend = Frontend(config, "all", is_checked=True, first_id=first_id)
    with telling_shortage():
        core = await _connect_beside(frontend, connect)
        loaded = await frontend.finish(core)
    async with _running(config, loaded):
        yield loaded.served


@asynccontextmanager
async def _running(config: EngineConfig, loaded: LoadedFrontend) -> AsyncIterator[None]:
    renderer = loaded.served.renderer
    async with (
        open_template_processes(
            config.render.renderer_processes
        ) as renderer.chats.processes,
        open_engine_task(loaded.engine),
    ):
        yield


class _Cores:
    """The core of an engine, and after a failure its successors, one at a time.

    Args:
      stack: the owner's; each core ends with it.
      frontend: the engine's; it is prepared with the first core.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_kind: ModelKind,
        process: bool,
        stack: AsyncExitStack,
        frontend: Frontend,
        origin: str,
    ) -> None:
        self._config = config
        self._model_kind: ModelKind = model_kind
        self._process = process
        self._stack = stack
        self._frontend = frontend
        self._origin = origin

    async def open(self) -> LoadedCore:
        core = await self._stack.enter_async_context(await self._choose())
        # Later cores must take sequences as long as this one does. The engine loads the adapters
        # again that it has then.
        model = replace(
            self._config.model, max_model_len=core.info.max_model_len, adapter=()
        )
        self._config = replace(self._config, model=model)
        return core

    async def _choose(self) -> AbstractAsyncContextManager[LoadedCore]:
        if self._process:
            return _open_process_core(
                self._config, self._model_kind, self._frontend, self._origin
            )
        await self._frontend.prepare()
        return open_core(self._config, self._model_kind, self._frontend.source)

    async def reopen(self) -> Any:
        """End the core and return another one."""
        await self._stack.aclose()
        try:
            return (await self.open()).core
        except StartupError as error:
            raise RuntimeError(f"the engine cannot start again: {error}") from error


@asynccontextmanager
async def _open_process_core(
    config: EngineConfig, model_kind: ModelKind, frontend: Frontend, origin: str
) -> AsyncIterator[LoadedCore]:
    async with open_child(
        ENGINE_PROCESS,
        *list_arguments(config),
        receives=FromEngine,
        name="the engine process",
    ) as child:
        load = partial(load_engine, child, config, model_kind, origin=origin)
        loaded = await _connect_beside(frontend, load)
        remote: Any = RemoteCore if loaded.pooling is None else RemotePoolingCore
        yield LoadedCore(
            core=remote(child.stream, child.describe_end),
            info=loaded.info,
            pooling=loaded.pooling,
        )


async def _connect_beside(
    frontend: Frontend, connect: Callable[[], Awaitable[CoreT]]
) -> CoreT:
    """Let a process load a model while this process prepares the frontend.

    Both look for the model, and import their modules, at the same time. The first that
    finds a mistake ends the other.

    Raises:
      StartupError, EngineProcessDied
    """
    failure: Exception | None = None
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(frontend.prepare)
            loaded = await connect()
    except* (StartupError, EngineProcessDied) as errors:
        failure = find_first(errors)
    if failure is not None:
        raise failure
    return loaded


async def load_engine(
    child: Child,
    config: EngineConfig,
    model_kind: ModelKind,
    *,
    is_shared: bool = False,
    origin: str = "",
) -> EngineLoaded:
    """Let a process load a model.

    Args:
      is_shared, origin: see StartEngine.

    Raises:
      StartupError: the model cannot be loaded.
      EngineProcessDied
    """
    level = logging.getLogger("trioserve").getEffectiveLevel()
    begin = StartEngine(
        config=config,
        model_kind=model_kind,
        log_level=level,
        is_shared=is_shared,
        origin=origin,
    )
    try:
        await child.stream.send(begin)
        answer = await child.stream.receive()
    except PeerGone:
        raise EngineProcessDied(await child.describe_end()) from None
    if isinstance(answer, NotLoaded):
        raise answer.restore()
    assert isinstance(answer, EngineLoaded), "that is the answer to StartEngine"
    return answer


def _make_config(
    model: str | EngineConfig, options: Mapping[str, object]
) -> EngineConfig:
    if isinstance(model, str):
        return build_config(EngineConfig, {"model": model, **options})
    if options:
        names = ", ".join(options)
        raise TypeError(f"options must be in the EngineConfig: {names}")
    return model
