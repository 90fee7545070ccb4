"""From a configuration to a core: what loads a model, in whichever process.

What needs torch is imported where it is needed and not above: that takes seconds, which
--help need not wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._version import __version__
from ..config import (
    DEFAULT_MODEL,
    DEFAULT_MODEL_SAMPLING,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from ..engine import LocalCore, LocalPoolingCore
from ..errors import InvalidConfig
from ..executor import LocalExecutor, make_local_executor
from ..pipeline.pipeline import Pipeline, open_pipeline
from ..scheduler import PoolingScheduler, Scheduler
from ..threads.fresh_thread import run_in_fresh_thread
from ..threads.stopping import checking_torch_calls
from ..types.logits import LogitsProcessor
from ..types.model_info import ModelInfo
from ..types.pooling import PoolingInfo, PoolingTask, Task
from ..types.sentence import SentenceFolder
from ..weights import (
    Weights,
    complete_weights,
    read_sentence_folder,
    resolve_description,
)
from .plugins import load_logits_processors
from .shortage import telling_shortage

if TYPE_CHECKING:
    from ..model import Outline

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model comes from and what it is used for.

    Args:
      weights: maybe not complete yet.
      sentence: what sentence-transformers' files say, if there are any.
      takes_images: so far as is known: a pipeline's engine leaves it to the stages.
    """

    weights: Weights
    task: Task
    sentence: SentenceFolder | None = None
    takes_images: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCore:
    """A core whose model is loaded, in whichever process.

    Args:
      core: an engine.GenerationCore, or an engine.PoolingCore where there is `pooling`.
    """

    core: Any
    info: ModelInfo
    pooling: PoolingInfo | None = None


# What is asked for: a model that writes, one that pools, or any.
ModelKind = Literal["generate", "pooling", "all"]


def find_source(config: EngineConfig, model_kind: ModelKind) -> Source:
    """Find a model, downloading all but its weights if need be.

    Raises:
      StartupError
    """
    # Before anything is imported: a wrong option or name is told at once.
    if model_kind == "pooling":
        _check_single(config)
    weights = resolve_description(config.model.model)
    sentence = read_sentence_folder(weights.folder)
    from ..model import takes_images
    from ..model.encoder import find_task

    task = find_task(weights.folder, sentence, config.pooling)
    if task != "generate":
        _check_single(config)
    _check_task(task, config.model.model, model_kind)
    has_vision = task == "generate" and takes_images(weights.folder)
    if not has_vision:
        _check_no_media(config)
    return Source(
        weights=weights, task=task, sentence=sentence, takes_images=has_vision
    )


@asynccontextmanager
async def open_core(
    config: EngineConfig, model_kind: ModelKind, source: Source | None = None
) -> AsyncIterator[LoadedCore]:
    """Load a model, here or spread over processes, which end with the block.

    Args:
      source: where it is, if that was found out.

    Raises:
      StartupError, StageDied
    """
    if config.parallel.pipeline_parallel_size == 1:
        with telling_shortage():
            core = await run_in_fresh_thread(
                partial(_load_core, config, model_kind, source)
            )
        yield core
        return
    if model_kind == "pooling":
        _check_single(config)
    with telling_shortage():
        found = await run_in_fresh_thread(partial(_find_for_pipeline, config, source))
    async with open_pipeline(config) as pipeline:
        yield await _make_pipeline_core(config, pipeline, *found)


def count_sequences(config: SchedulerConfig) -> int:
    """Return how many may run and wait together."""
    return config.max_num_seqs + config.max_num_waiting


def _find_for_pipeline(
    config: EngineConfig, source: Source | None
) -> tuple[Source, tuple[type[LogitsProcessor], ...]]:
    """Find what a pipeline needs that is in no stage.

    The stages find out what the model is for, and refuse it if need be. So this process
    does without torch, which takes seconds and hundreds of megabytes.
    """
    # First: a mistake in an option is told before gigabytes are read.
    processors = load_logits_processors(config.model.logits_processor)
    if source is None:
        weights = resolve_description(config.model.model)
        source = Source(weights=weights, task="generate")
    return source, processors


def _check_single(config: EngineConfig) -> None:
    """Refuse to spread what cannot be spread."""
    if config.parallel.pipeline_parallel_size > 1:
        raise InvalidConfig(
            "pipeline_parallel_size", "a model that pools runs in one process"
        )


def _check_no_media(config: EngineConfig) -> None:
    """Refuse options that would do nothing for a model without images."""
    for name in ("allowed_media_domains", "allowed_local_media_path"):
        if getattr(config.media, name):
            raise InvalidConfig(name, f"{config.model.model} takes no images")


def _check_task(task: Task, model: str, model_kind: ModelKind) -> None:
    if model_kind == "generate" and task != "generate":
        raise InvalidConfig(
            "model", f"{model} is served for {task}: open it by open_pooling_engine"
        )
    if model_kind == "pooling" and task == "generate":
        raise InvalidConfig(
            "model", f"{model} generates: open it by open_engine, or name a task"
        )


def _load_core(
    config: EngineConfig, model_kind: ModelKind, source: Source | None
) -> LoadedCore:
    if source is None:
        source = find_source(config, model_kind)
    with checking_torch_calls():
        if source.task == "generate":
            return _load_generation_core(config, source)
        return _load_pooling_core(config, source, source.task)


def _load_generation_core(config: EngineConfig, source: Source) -> LoadedCore:
    from ..model import ModelRunner, count_blocks, load_model, outline_model

    # First, as in open_core.
    processors = load_logits_processors(config.model.logits_processor)
    check_room(outline_model(source.weights.folder, config.model), config)
    weights = complete_weights(source.weights)
    name = config.model.served_model_name or weights.name
    model = load_model(weights.folder, config.model, name=name)
    num_blocks = count_blocks(
        model,
        config.cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.info.max_model_len,
    )
    info = _resolve_info(config, source, model.info, num_blocks, processors)
    scheduler = _make_scheduler(config, info, num_blocks, model.device.type)
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=info.max_model_len,
        logits_processors=processors,
    )
    runner.warm_up()
    _log_loaded(info, config, num_blocks)
    executor = make_local_executor(
        runner, model.device.type, depth=1 + config.scheduler.async_scheduling
    )
    core = LocalCore(scheduler, executor, info=info)
    return LoadedCore(core=core, info=info)


async def _make_pipeline_core(
    config: EngineConfig,
    pipeline: Pipeline,
    source: Source,
    processors: Sequence[type[LogitsProcessor]],
) -> LoadedCore:
    num_blocks = pipeline.num_blocks
    info = _resolve_info(config, source, pipeline.info, num_blocks, processors)
    executor = await pipeline.connect(config, info.max_model_len)
    scheduler = _make_scheduler(config, info, num_blocks, pipeline.device_type)
    _log_loaded(info, config, num_blocks)
    core = LocalCore(scheduler, executor, info=info)
    return LoadedCore(core=core, info=info)


def _resolve_info(
    config: EngineConfig,
    source: Source,
    info: ModelInfo,
    num_blocks: int,
    processors: Sequence[type[LogitsProcessor]],
) -> ModelInfo:
    """Complete what a model says of itself by what the configuration makes of it."""
    return replace(
        _resolve_length(info, config, num_blocks),
        default_sampling=_resolve_sampling(info, config.model),
        fingerprint=_fingerprint(source.weights.folder, info.dtype),
        logits_processors=tuple(processor.name for processor in processors),
    )


def _log_loaded(info: ModelInfo, config: EngineConfig, num_blocks: int) -> None:
    block_size = config.cache.block_size
    logger.info(
        "loaded %s; its longest sequence: %d tokens", info.name, info.max_model_len
    )
    logger.info("the KV cache: %d blocks of %d tokens", num_blocks, block_size)


def _load_pooling_core(
    config: EngineConfig, source: Source, task: PoolingTask
) -> LoadedCore:
    from ..model.encoder import check_encoder, load_encoder
    from ..model.pooling import PoolingRunner, check_pooling

    _refuse_for_pooling("logits_processor", config.model.logits_processor, (), task)
    _refuse_for_pooling(
        "reasoning_parser", config.render.reasoning_parser, "none", task
    )
    _refuse_for_pooling(
        "max_step_seconds", config.scheduler.max_step_seconds, None, task
    )
    check_pooling(task, source.sentence, config.pooling)
    check_encoder(
        source.weights.folder, config.model, task=task, sentence=source.sentence
    )
    weights = complete_weights(source.weights)
    encoder = load_encoder(
        weights.folder,
        config.model,
        name=config.model.served_model_name or weights.name,
        task=task,
        sentence=source.sentence,
    )
    info = replace(
        encoder.info,
        fingerprint=_fingerprint(weights.folder, encoder.info.dtype),
    )
    runner = PoolingRunner(encoder, weights.folder, source.sentence, config.pooling)
    runner.warm_up()
    logger.info(
        "loaded %s; its longest input: %d tokens", info.name, info.max_model_len
    )
    logger.info("the task: %s, %d numbers each", task, runner.info.num_outputs)
    core = LocalPoolingCore(
        _make_pooling_scheduler(config.scheduler, encoder.device.type),
        LocalExecutor(runner.step),
    )
    return LoadedCore(core=core, info=info, pooling=runner.info)


def _refuse_for_pooling(name: str, value: object, neutral: object, task: Task) -> None:
    """Refuse an option that would do nothing where nothing is written."""
    if value != neutral:
        raise InvalidConfig(name, f"the model is served for {task} and does not write")


def check_room(
    outline: Outline | None, config: EngineConfig, *, num_sharing: int = 1
) -> None:
    """Refuse a KV cache that is too small, before weights are read.

    Args:
      outline: None is not looked at: the loaded model will be.
      num_sharing: as in model.count_blocks.

    Raises:
      InvalidConfig
    """
    if outline is None:
        return
    num_blocks = outline.count_blocks(
        config.cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        num_sharing=num_sharing,
    )
    _check_length(config, num_blocks)


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
        num_stages=config.parallel.pipeline_parallel_size,
        max_step_seconds=_resolve_step_seconds(config.scheduler, device_type),
    )


def _resolve_step_seconds(config: SchedulerConfig, device_type: str) -> float:
    """Return the bound of a step that others wait for, or the device's default."""
    if config.max_step_seconds is not None:
        return config.max_step_seconds
    return 0.25 if device_type == "cpu" else 0.1


def _make_pooling_scheduler(
    config: SchedulerConfig, device_type: str
) -> PoolingScheduler:
    return PoolingScheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=_resolve_budget(
            config, device_type, cpu=2048, gpu=16384
        ),
    )


def _resolve_length(
    info: ModelInfo, config: EngineConfig, num_blocks: int
) -> ModelInfo:
    """One sequence alone must fit the pool, or it would wait for itself for ever."""
    _check_length(config, num_blocks)
    room = num_blocks * config.cache.block_size
    return replace(info, max_model_len=min(info.max_model_len, room))


def _check_length(config: EngineConfig, num_blocks: int) -> None:
    room = num_blocks * config.cache.block_size
    if config.model.max_model_len is not None and config.model.max_model_len > room:
        raise InvalidConfig(
            "max_model_len",
            f"the KV cache holds {room} tokens; give it more by --kv-cache-memory",
        )


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
