"""From a configuration to a running engine: the door for programs that embed us.

No signal handler, no child process, nothing global: what `open_engine` starts is gone
when its block is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
import logging
from operator import methodcaller
from pathlib import Path
import threading
from typing import TYPE_CHECKING, TypeVar

import outcome
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
from .engine import Engine, LocalCore, LocalPoolingCore, PoolingLoop
from .errors import InvalidConfig
from .executor import LocalExecutor
from .plugins import load_logits_processors
from .pooling import PoolingTask, Task
from .pooling_engine import PoolingEngine
from .render import open_template_processes
from .scheduler import PoolingScheduler, Scheduler
from .sentence import SentenceFolder
from .steps import ModelInfo, StepPlan, StepResult
from .text_engine import TextEngine
from .weights import Weights, read_sentence_folder, resolve_weights

if TYPE_CHECKING:
    from .model import ModelRunner

logger = logging.getLogger(__name__)

T = TypeVar("T")


@asynccontextmanager
async def open_engine(
    model: str | EngineConfig = DEFAULT_MODEL, **options: object
) -> AsyncIterator[TextEngine]:
    """Load a model that writes and serve it to the block's body.

    Args:
      model: as on the command line, or a whole EngineConfig.
      options: fields of EngineConfig's parts, by name, where `model` is a string.

    Raises:
      StartupError: the model cannot be found, read or run, it does not write, or an
        option is wrong.
      ExceptionGroup: with whatever ended the engine or was raised in the block.
    """
    config = _make_config(model, options)
    async with _open(config, _refuse_pooling) as engine:
        assert isinstance(engine, TextEngine), "others were refused"
        yield engine


@asynccontextmanager
async def open_pooling_engine(
    model: str | EngineConfig, **options: object
) -> AsyncIterator[PoolingEngine]:
    """Load a model that embeds, classifies or scores; as open_engine."""
    config = _make_config(model, options)
    async with _open(config, _refuse_generation) as engine:
        assert isinstance(engine, PoolingEngine), "others were refused"
        yield engine


@asynccontextmanager
async def open_served_engine(
    config: EngineConfig,
) -> AsyncIterator[TextEngine | PoolingEngine]:
    """Load whatever model it is, and serve it to the block's body."""
    async with _open(config, _accept_all) as engine:
        yield engine


@asynccontextmanager
async def _open(
    config: EngineConfig, check_task: Callable[[Task, str], None]
) -> AsyncIterator[TextEngine | PoolingEngine]:
    loaded = await _run_in_own_thread(partial(_load, config, check_task))
    renderer = loaded.served.renderer
    async with (
        open_template_processes(config.render.renderer_processes) as renderer.processes,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(loaded.loop.run)
        yield loaded.served
        nursery.cancel_scope.cancel()


async def _run_in_own_thread(work: Callable[[], T]) -> T:
    """Run in a thread that ends with it, and is abandoned on cancel.

    trio's threads are used again, and OpenMP's team of the one that loaded a model would
    stay, which slows down the device's thread (executor/local.py). Abandoned: nobody
    shares what it loads, and stopping must not wait.
    """
    token = trio.lowlevel.current_trio_token()
    is_done = trio.Event()
    results: list[outcome.Outcome[T]] = []

    def run() -> None:
        results.append(outcome.capture(work))
        # The host may have left meanwhile.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(is_done.set)

    threading.Thread(target=run, name="trioserve loads a model", daemon=True).start()
    await is_done.wait()
    return results[0].unwrap()


def _make_config(
    model: str | EngineConfig, options: Mapping[str, object]
) -> EngineConfig:
    if isinstance(model, str):
        return build_config(EngineConfig, {"model": model, **options})
    if options:
        raise TypeError("options belong into the EngineConfig")
    return model


def _refuse_pooling(task: Task, model: str) -> None:
    if task != "generate":
        raise InvalidConfig(
            "model", f"{model} is served for {task}: open it by open_pooling_engine"
        )


def _refuse_generation(task: Task, model: str) -> None:
    if task == "generate":
        raise InvalidConfig(
            "model", f"{model} generates: open it by open_engine, or name a task"
        )


def _accept_all(task: Task, model: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What is loaded, and the loop that has to run for it."""

    served: TextEngine | PoolingEngine
    loop: Engine | PoolingLoop


# Everything below takes seconds and blocks. What it needs is imported there and not
# above: importing torch takes seconds, too, which --help need not wait.


def _load(config: EngineConfig, check_task: Callable[[Task, str], None]) -> _Loaded:
    # Before anything is imported: a wrong name is told at once.
    weights = resolve_weights(config.model.model)
    sentence = read_sentence_folder(weights.folder)
    from .model.encoding import find_task

    task = find_task(weights.folder, sentence, config.pooling)
    check_task(task, config.model.model)
    if task == "generate":
        return _load_text_engine(config, weights)
    return _load_pooling_engine(config, weights, task, sentence)


def _load_text_engine(config: EngineConfig, weights: Weights) -> _Loaded:
    from .model import ModelRunner, count_blocks, load_model
    from .render import load_renderer

    # First: a mistake in an option is told before gigabytes are read.
    processors = load_logits_processors(config.model.logits_processor)
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
        logits_processors=tuple(processor.name for processor in processors),
    )
    scheduler = _make_scheduler(config, info, num_blocks, model.device.type)
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=info.max_model_len,
        logits_processors=processors,
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
    executor = _make_executor(runner, config.scheduler, model.device.type)
    engine = Engine(
        LocalCore(scheduler, executor, info=info),
        info=info,
        max_num_sequences=_count_sequences(config.scheduler),
    )
    served = TextEngine(engine, renderer, processors)
    return _Loaded(served=served, loop=engine)


def _load_pooling_engine(
    config: EngineConfig,
    weights: Weights,
    task: PoolingTask,
    sentence: SentenceFolder | None,
) -> _Loaded:
    from .model.encoding import load_encoder
    from .model.pooling import PoolingRunner
    from .render import load_pooling_renderer

    _refuse_for_pooling("logits_processor", config.model.logits_processor, (), task)
    _refuse_for_pooling(
        "reasoning_parser", config.render.reasoning_parser, "none", task
    )
    encoder = load_encoder(
        weights.folder,
        config.model,
        name=config.model.served_model_name or weights.name,
        task=task,
        sentence=sentence,
    )
    info = replace(
        encoder.info, fingerprint=_fingerprint(weights.folder, str(encoder.dtype))
    )
    runner = PoolingRunner(encoder, weights.folder, sentence, config.pooling)
    renderer = load_pooling_renderer(
        weights.folder,
        config.render,
        info=info,
        pooling=runner.info,
        sentence=sentence,
        chat_template=_read_template(config.model.chat_template),
    )
    runner.warm_up()
    logger.info(
        "loaded %s: it will %s, %d numbers each, %d tokens at most in an input",
        info.name,
        task,
        runner.info.num_outputs,
        info.max_model_len,
    )
    core = LocalPoolingCore(
        _make_pooling_scheduler(config.scheduler, encoder.device.type),
        LocalExecutor(runner.step),
    )
    engine = PoolingLoop(
        core,
        info=info,
        pooling=runner.info,
        max_num_inputs=_count_sequences(config.scheduler),
    )
    served = PoolingEngine(engine, renderer, long_texts=config.pooling.long_texts)
    return _Loaded(served=served, loop=engine)


def _refuse_for_pooling(name: str, value: object, neutral: object, task: Task) -> None:
    """Refuse an option that would do nothing where nothing is written."""
    if value != neutral:
        raise InvalidConfig(name, f"the model is served for {task} and does not write")


def _make_scheduler(
    config: EngineConfig, info: ModelInfo, num_blocks: int, device_type: str
) -> Scheduler:
    budget = _resolve_budget(config.scheduler, device_type, cpu=512, gpu=2048)
    return Scheduler(
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        # Every running sequence must be able to decode in every step.
        max_num_batched_tokens=max(budget, config.scheduler.max_num_seqs),
        max_model_len=info.max_model_len,
        prefix_caching=config.cache.prefix_caching,
    )


def _make_executor(
    runner: ModelRunner, config: SchedulerConfig, device_type: str
) -> LocalExecutor[StepPlan, StepResult]:
    depth = 2 if config.async_scheduling else 1
    if device_type == "cpu" or depth == 1:
        return LocalExecutor(runner.step, depth=depth)
    # The thread that launches the next step must not be the one that waits for this.
    return LocalExecutor(runner.launch, methodcaller("finish"), depth=depth)


def _make_pooling_scheduler(
    config: SchedulerConfig, device_type: str
) -> PoolingScheduler:
    return PoolingScheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=_resolve_budget(
            config, device_type, cpu=2048, gpu=16384
        ),
    )


def _count_sequences(config: SchedulerConfig) -> int:
    return config.max_num_seqs + config.max_num_waiting


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


def _resolve_budget(
    config: SchedulerConfig, device_type: str, *, cpu: int, gpu: int
) -> int:
    """Return the tokens of a step: those asked for, or the device's default."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return cpu if device_type == "cpu" else gpu


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig("chat_template", str(error)) from error
