"""Several models behind one door: for programs that embed them, and for the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial
import math
import socket

from ..config import (
    EngineConfig,
    ModelsConfig,
    ServeConfig,
    ServedModel,
    build_config,
    check_names,
)
from ..config.keywords import naming_keywords
from ..errors import InvalidConfig
from ..frontend.models.router import Engine, ModelEntry, ModelRouter, open_router
from ..processes.threads.fresh_thread import run_in_fresh_thread
from .first_checks import check_first
from .held_memory import estimate_held
from .http_server import HttpServer
from .open import open_served_engine
from .source import drop_unused

Naming = Callable[[], AbstractContextManager[None]]


@asynccontextmanager
async def open_models(
    models: Mapping[str, str | EngineConfig | Mapping[str, object]],
    *,
    process: bool = True,
    memory: str | int | None = None,
    min_residence: float = 10.0,
    preload: bool = False,
) -> AsyncIterator[ModelRouter]:
    """Serve several models to the body of the block; each is loaded when it is needed.

        async with open_models({"chat": "org/chat", "embed": "org/embed"}) as models:
            async with models.hold("chat") as engine:
                ...

    Args:
      models: by name; each as for open_engine, or its options with a key `model`.
      process: run each engine in a process of its own, which ends with the engine. Without
        it a model's memory is estimated by its files.
      memory, min_residence, preload: as on the command line.

    Raises:
      StartupError: an option is wrong, or a model is not there.
      The error of the block, the same object.
    """
    with naming_keywords():
        config = ModelsConfig(
            memory=memory, min_residence=min_residence, preload=preload
        )
        served = check_names(
            [
                ServedModel.of(name, _make_config(name, each), preload=preload)
                for name, each in models.items()
            ],
            "models",
        )
        router = make_router(served, config, process=process, naming=naming_keywords)
    async with _open(router, served):
        yield router


def _make_config(
    name: str, model: str | EngineConfig | Mapping[str, object]
) -> EngineConfig:
    if isinstance(model, EngineConfig):
        return model
    options = {"model": model} if isinstance(model, str) else model
    if not (isinstance(options, Mapping) and "model" in options):
        reason = "is neither a model nor its options with a key `model`"
        raise InvalidConfig("models", f"{name!r}: {model!r} {reason}")
    return build_config(EngineConfig, options)


def make_router(
    models: Iterable[ServedModel],
    config: ModelsConfig,
    *,
    process: bool,
    naming: Naming = nullcontext,
) -> ModelRouter:
    """Return a router, which has loaded nothing yet.

    Args:
      naming: spells the options in errors.

    Raises:
      StartupError: a model cannot be loaded, as far as that is known in milliseconds.
      ValueError: there is no model.
    """
    models = [*models]
    if not models:
        raise ValueError("there must be a model")
    # The other half is for weights and libraries.
    size = None if config.budget is None else config.budget // (2 * len(models))
    entries = [_make_entry(each, size, config, process, naming) for each in models]
    return ModelRouter(
        entries, budget=config.budget, min_residence=config.min_residence
    )


def _limit_cache(model: ServedModel, size: int | None) -> ServedModel:
    """Give the KV cache of a model a size in bytes, if there is one and its options give none.

    By default a cache takes a part of the free memory, which may be more than all models
    may hold.
    """
    cache = model.config.cache
    if size is None or cache.kv_cache_memory or cache.kv_cache_fraction:
        return model
    cache = replace(cache, kv_cache_memory=str(size))
    return replace(
        model,
        config=replace(model.config, cache=cache),
        shared=model.shared | {"kv_cache_memory"},
    )


def _make_entry(
    served: ServedModel,
    cache_bytes: int | None,
    config: ModelsConfig,
    process: bool,
    naming: Naming,
) -> ModelEntry:
    model = _limit_cache(served, cache_bytes)
    check_first(model.config)
    if config.memory is not None and model.config.parallel.world_size > 1:
        reason = "does not measure stages; leave it out, or let each model have one"
        raise InvalidConfig("memory", reason)

    name, *others = model.names

    @asynccontextmanager
    async def open_engine() -> AsyncIterator[Engine]:
        with naming():
            own = await run_in_fresh_thread(
                partial(drop_unused, model.config, model.shared, told=served.shared)
            )
        async with open_served_engine(
            own, process=process, naming=naming(), origin=name
        ) as engine:
            yield engine

    return ModelEntry(
        name=name,
        other_names=tuple(others),
        source=model.config.model.model,
        adapters=tuple(name for name, _ in model.config.model.list_adapters()),
        num_bytes=estimate_held(model.config, config.budget, process=process),
        open_engine=open_engine,
    )


@asynccontextmanager
async def _open(
    router: ModelRouter, models: Iterable[ServedModel]
) -> AsyncIterator[ModelRouter]:
    """Run a router, and begin to load the models that the operator wants at the start."""
    async with open_router(router):
        left = math.inf if router.budget is None else router.budget
        estimates = {each.entry.name: each.view.num_bytes for each in router.describe()}
        for model in models:
            name = model.names[0]
            # The first models that fit stay; others would only push them out.
            if model.preload and estimates[name] <= left:
                left -= estimates[name]
                router.load(name)
        yield router


class SeveralModels:
    """A server with several models: HTTP in this process, and a process for each engine.

    Args:
      sock: bound, not listening.

    Raises:
      InvalidConfig: a key or a certificate cannot be used.
      StartupError: as make_router.
    """

    def __init__(
        self, config: ServeConfig, models: Sequence[ServedModel], sock: socket.socket
    ) -> None:
        self._models = models
        self._router = make_router(
            models, config.models, process=config.process.engine_process
        )
        self._server = HttpServer(config, sock)

    @property
    def is_draining(self) -> bool:
        return self._server.state.lifecycle.is_draining

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        await self._server.serve(
            lambda: _open(self._router, self._models),
            on_ready,
            self._server.state.finish_drain,
        )

    def begin_drain(self) -> None:
        self._server.state.lifecycle.begin_drain()

    async def reload(self) -> None:
        await self._server.reload()

    def log_stalls(self) -> None:
        self._server.log_stalls()
