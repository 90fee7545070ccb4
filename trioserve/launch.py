"""From a configuration to a running engine: the door for programs that embed us.

No signal handler and nothing global; no child process unless asked for. What `open_engine`
starts is gone when its block is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass, replace
from functools import partial
import logging
from pathlib import Path
from typing import Any

from .config import DEFAULT_MODEL, EngineConfig, build_config
from .cores import Accepts, LoadedCore, count_sequences, find_source, open_core
from .engine import (
    Engine,
    EngineProcessDied,
    PoolingLoop,
    RemoteCore,
    RemotePoolingCore,
)
from .engine.messages import Begin, FromEngine, Loaded
from .engine_task import open_engine_task
from .errors import InvalidConfig, StartupError
from .executor.messages import NotLoaded
from .own_thread import open_own_thread, run_in_own_thread
from .plugins import load_logits_processors
from .pooling import PoolingInfo
from .pooling_engine import PoolingEngine
from .processes import Child, PeerGone, open_child
from .render import open_template_processes
from .shortage import telling_shortage
from .text_engine import TextEngine


@asynccontextmanager
async def open_engine(
    model: str | EngineConfig = DEFAULT_MODEL,
    *,
    process: bool = False,
    **options: object,
) -> AsyncIterator[TextEngine]:
    """Load a model that writes and serve it to the block's body.

    A load that is cancelled is left within a second. Only an import goes on longer, in a
    thread that ends after it. The interpreter waits for that thread before it ends.

    Args:
      model: as on the command line, or a whole EngineConfig.
      process: run the engine in a process of its own, which shares no GIL with the
        program; it ends with the block, and with the program.
      options: fields of EngineConfig's parts, by name, where `model` is a string.

    Raises:
      StartupError: the model cannot be found, read or run, it does not write, or an
        option is wrong.
      errors.EngineDied: the engine failed; __cause__ tells why.
      ExceptionGroup: the engine failed, and the block raised something else. What the
        block raises while the engine is well leaves it as it is.
    """
    config = _make_config(model, options)
    async with _open(config, "generate", process) as engine:
        assert isinstance(engine, TextEngine), "others were refused"
        yield engine


@asynccontextmanager
async def open_pooling_engine(
    model: str | EngineConfig, *, process: bool = False, **options: object
) -> AsyncIterator[PoolingEngine]:
    """Load a model that embeds, classifies or scores; as open_engine."""
    config = _make_config(model, options)
    async with _open(config, "pooling", process) as engine:
        assert isinstance(engine, PoolingEngine), "others were refused"
        yield engine


def open_served_engine(
    config: EngineConfig, *, process: bool
) -> AbstractAsyncContextManager[TextEngine | PoolingEngine]:
    """Load whatever model it is, and serve it to the block's body."""
    return _open(config, "all", process)


@asynccontextmanager
async def _open(
    config: EngineConfig, accepts: Accepts, process: bool
) -> AsyncIterator[TextEngine | PoolingEngine]:
    async with AsyncExitStack() as stack:
        cores = _Cores(config, accepts, process, stack)
        with telling_shortage():
            core = await cores.open()
            front = await run_in_own_thread(partial(_load_front, config, core, cores))
        renderer = front.served.renderer
        async with (
            open_template_processes(
                config.render.renderer_processes
            ) as renderer.processes,
            open_engine_task(front.engine),
        ):
            yield front.served


class _Cores:
    """The core of an engine, and those that come after it, one at a time.

    Args:
      stack: of whoever has them; all end with it.
    """

    def __init__(
        self,
        config: EngineConfig,
        accepts: Accepts,
        process: bool,
        stack: AsyncExitStack,
    ) -> None:
        self._config = config
        self._accepts = accepts
        self._open_core = _open_process_core if process else open_core
        self._stack = stack

    async def open(self) -> LoadedCore:
        core = await self._stack.enter_async_context(
            self._open_core(self._config, self._accepts)
        )
        # Later ones must take what has been promised for this one.
        model = replace(self._config.model, max_model_len=core.info.max_model_len)
        self._config = replace(self._config, model=model)
        return core

    async def reopen(self) -> Any:
        """End the core and return another one."""
        await self._stack.aclose()
        try:
            return (await self.open()).core
        except StartupError as error:
            raise RuntimeError(f"the engine cannot start again: {error}") from error


@asynccontextmanager
async def _open_process_core(
    config: EngineConfig, accepts: Accepts
) -> AsyncIterator[LoadedCore]:
    # Both processes look for the model, and import what they need, at once. Of what is
    # wrong with it the other one tells. The process is ended first, since the thread may
    # take a second.
    async with (
        open_own_thread(partial(find_source, config, accepts)) as finding,
        open_child(
            "trioserve.engine_process", receives=FromEngine, name="the engine process"
        ) as child,
    ):
        loaded = await _load_in(child, config, accepts)
        remote: Any = RemoteCore if loaded.pooling is None else RemotePoolingCore
        yield LoadedCore(
            source=await finding.wait(),
            core=remote(child.stream, child.describe_end),
            info=loaded.info,
            pooling=loaded.pooling,
        )


async def _load_in(child: Child, config: EngineConfig, accepts: Accepts) -> Loaded:
    """Have a process load a model.

    Raises:
      StartupError: as where it is loaded here.
      EngineProcessDied
    """
    level = logging.getLogger("trioserve").getEffectiveLevel()
    begin = Begin(config=config, accepts=accepts, log_level=level)
    try:
        await child.stream.send(begin)
        answer = await child.stream.receive()
    except PeerGone:
        raise EngineProcessDied(await child.describe_end()) from None
    if isinstance(answer, NotLoaded):
        raise answer.restore()
    assert isinstance(answer, Loaded), "that is the answer to Begin"
    return answer


def _make_config(
    model: str | EngineConfig, options: Mapping[str, object]
) -> EngineConfig:
    if isinstance(model, str):
        return build_config(EngineConfig, {"model": model, **options})
    if options:
        raise TypeError("options belong into the EngineConfig")
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """What is served, and the engine that has to run for it."""

    served: TextEngine | PoolingEngine
    engine: Engine | PoolingLoop


def _load_front(config: EngineConfig, core: LoadedCore, cores: _Cores) -> _Front:
    """Load what a core does without; blocking, and takes seconds."""
    if core.pooling is None:
        return _load_text_front(config, core, cores)
    return _load_pooling_front(config, core, core.pooling)


def _load_text_front(config: EngineConfig, core: LoadedCore, cores: _Cores) -> _Front:
    from .render import load_renderer

    renderer = load_renderer(
        core.source.weights.folder,
        config.render,
        info=core.info,
        media=config.media,
        chat_template=_read_template(config.model.chat_template),
    )
    engine = Engine(
        core.core,
        info=core.info,
        max_num_sequences=count_sequences(config.scheduler),
        max_num_running=config.scheduler.max_num_seqs,
        scheduling_policy=config.scheduler.scheduling_policy,
        reopen=cores.reopen if config.parallel.restart_stages else None,
    )
    processors = load_logits_processors(config.model.logits_processor)
    return _Front(served=TextEngine(engine, renderer, processors), engine=engine)


def _load_pooling_front(
    config: EngineConfig, core: LoadedCore, pooling: PoolingInfo
) -> _Front:
    from .render import load_pooling_renderer

    renderer = load_pooling_renderer(
        core.source.weights.folder,
        config.render,
        info=core.info,
        pooling=pooling,
        sentence=core.source.sentence,
        chat_template=_read_template(config.model.chat_template),
    )
    engine = PoolingLoop(
        core.core,
        info=core.info,
        pooling=pooling,
        max_num_inputs=count_sequences(config.scheduler),
        scheduling_policy=config.scheduler.scheduling_policy,
    )
    served = PoolingEngine(engine, renderer, long_texts=config.pooling.long_texts)
    return _Front(served=served, engine=engine)


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("chat_template", str(error)) from error
