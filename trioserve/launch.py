"""From a configuration to a running engine: the door for programs that embed us.

No signal handler, no child process, nothing global: what `open_engine` starts is gone
when its block is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from . import __version__
from .config import (
    DEFAULT_MODEL,
    DEFAULT_MODEL_SAMPLING,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    build_config,
)
from .engine import Engine
from .errors import InvalidConfig
from .executor import LocalExecutor
from .render import open_template_processes
from .scheduler import Scheduler
from .steps import ModelInfo
from .text_engine import TextEngine
from .weights import resolve_weights

if TYPE_CHECKING:
    from .model import ModelRunner
    from .render import Renderer

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_engine(
    model: str | EngineConfig = DEFAULT_MODEL, **options: object
) -> AsyncIterator[TextEngine]:
    """Load a model and serve it to the block's body.

    Args:
      model: as on the command line, or a whole EngineConfig.
      options: fields of EngineConfig's parts, by name, where `model` is a string.

    Raises:
      StartupError: the model cannot be found, read or run, or an option is wrong.
      ExceptionGroup: with whatever ended the engine or was raised in the block.
    """
    if isinstance(model, str):
        config = build_config(EngineConfig, {"model": model, **options})
    elif options:
        raise TypeError("options belong into the EngineConfig")
    else:
        config = model
    # Abandoned on cancel: nobody shares what it loads, and stopping must not wait.
    loaded = await trio.to_thread.run_sync(
        _load, config, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True
    )
    engine = Engine(
        loaded.scheduler,
        LocalExecutor(loaded.runner.step),
        info=loaded.info,
        max_num_sequences=config.scheduler.max_num_seqs
        + config.scheduler.max_num_waiting,
    )
    renderer = loaded.renderer
    async with (
        open_template_processes(config.render.renderer_processes) as renderer.processes,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(engine.run)
        yield TextEngine(engine, renderer)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    info: ModelInfo
    scheduler: Scheduler
    runner: ModelRunner
    renderer: Renderer


def _load(config: EngineConfig) -> _Loaded:
    """Do all that takes seconds; blocking."""
    # Here and not above: importing torch takes seconds, which --help need not wait.
    from .model import ModelRunner, count_blocks, load_model
    from .render import load_renderer

    weights = resolve_weights(config.model.model)
    name = config.model.served_model_name or weights.name
    model = load_model(weights.folder, config.model, name=name)
    num_blocks = count_blocks(
        model,
        config.cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.info.max_model_len,
    )
    info = replace(
        _resolve_length(model.info, config, num_blocks),
        default_sampling=_resolve_sampling(model.info, config.model),
        fingerprint=_fingerprint(weights.folder, str(model.dtype)),
    )
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=_resolve_budget(config.scheduler, model.device.type),
        max_model_len=info.max_model_len,
        prefix_caching=config.cache.prefix_caching,
    )
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=info.max_model_len,
    )
    renderer = load_renderer(
        weights.folder,
        config.render,
        info=info,
        media=config.media,
        chat_template=_read_template(config.model.chat_template),
    )
    runner.warm_up()
    logger.info(
        "loaded %s: %d KV blocks of %d tokens, %d tokens at most in a sequence",
        name,
        num_blocks,
        config.cache.block_size,
        info.max_model_len,
    )
    return _Loaded(info=info, scheduler=scheduler, runner=runner, renderer=renderer)


def _resolve_length(
    info: ModelInfo, config: EngineConfig, num_blocks: int
) -> ModelInfo:
    """One sequence alone must fit the pool, or it would wait for itself for ever."""
    room = num_blocks * config.cache.block_size
    if config.model.max_model_len is not None and config.model.max_model_len > room:
        raise InvalidConfig(
            "max_model_len",
            f"the KV cache holds {room} tokens; give it more by --kv-cache-memory",
        )
    return replace(info, max_model_len=min(info.max_model_len, room))


def _resolve_sampling(
    info: ModelInfo, config: ModelConfig
) -> tuple[tuple[str, float], ...]:
    if config.model == DEFAULT_MODEL and config.generation_config == "auto":
        return info.default_sampling or DEFAULT_MODEL_SAMPLING
    return info.default_sampling


def _fingerprint(folder: Path, dtype: str) -> str:
    """Name what an answer depends on besides its request: code, model and numbers."""
    parts = blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        # Size, not content: weights are gigabytes, and nobody forges their own.
        if path.is_file():
            parts.update(f"{path.name}:{path.stat().st_size};".encode())
    parts.update(f"{__version__};{dtype}".encode())
    return f"fp_{parts.hexdigest()}"


def _resolve_budget(config: SchedulerConfig, device_type: str) -> int:
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    default = 512 if device_type == "cpu" else 2048
    return max(default, config.max_num_seqs)


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("chat_template", str(error)) from error
