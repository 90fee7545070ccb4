"""The core of a model that generates, in one process or in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
import logging
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig, ModelConfig
from ..engine.generation.core import LocalCore
from ..errors import InvalidConfig
from ..executor import LocalExecutor, RestingExecutor, make_local_executor
from ..executor.pipeline.executor import PipelineExecutor
from ..executor.pipeline.pipeline import Pipeline, open_pipeline
from ..executor.pipeline.torchrun import find_torchrun
from ..processes.threads.heap import trim_heap
from ..types.gguf import GgufFile
from ..types.logits import LogitsProcessor
from ..types.model_info import ModelInfo
from ..types.output import StepResult
from ..types.plan import StepPlan
from ..types.windows import CacheBlocks
from ..weights import (
    Weights,
    complete_weights,
    measure_weights,
    read_gguf,
    read_gguf_adapter,
)
from .limits import (
    check_room,
    count_step_tokens,
    limit_images,
    limit_length,
    limit_sequences,
    make_scheduler,
    measure_step_bytes,
    set_max_num_seqs,
)
from .loaded import LoadedCore, add_names, fingerprint_model
from .plugins import load_logits_processors
from .resting import make_idle_rule, rest_between, trim_memory
from .shortage import telling_shortage
from .source import Source, read_template
from .turn_ends import find_turn_ends

if TYPE_CHECKING:
    from ..model.runtimes.loaded import LoadedModel

logger = logging.getLogger(__name__)


def build_generation_core(config: EngineConfig, source: Source) -> LoadedCore:
    from ..model.attention.cache_memory import count_fitting_blocks
    from ..model.open import outline

    # First, so that a mistake in an option is reported before gigabytes are read.
    processors = load_logits_processors(config.model.logits_processor)
    file = None if source.weights.gguf is None else read_gguf(source.weights.gguf)
    check_room(outline(source.weights.folder, config.model), config)
    model, weights = _load(config.model, source.weights, file)
    source = replace(source, weights=weights)
    config = limit_sequences(config, model)
    blocks = count_fitting_blocks(
        model.info.kv_bytes_per_token,
        config.cache,
        windows=model.info.windows,
        max_chunk=count_step_tokens(config.scheduler, model.device.type),
        state_bytes=model.info.state_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.info.max_model_len,
        wanted_len=config.model.max_model_len,
        device=model.device,
        step_bytes=measure_step_bytes(config, model),
    )
    info = limit_images(model.info, config, model.device.type)
    info = _complete_info(
        config, source, info, blocks, processors, model.device.type, file
    )
    scheduler = make_scheduler(config, info, blocks, model.device.type)
    make_executor = partial(
        _make_executor, config, source, info, blocks, processors=processors
    )
    executor = rest_between(
        make_executor(model),
        partial(_load_again, config, source, make_executor),
    )
    _log_loaded(info, config, blocks)
    core = LocalCore(
        scheduler,
        executor,
        info=info,
        max_adapters=config.model.max_adapters,
        memory=executor,
        idle=make_idle_rule(config.sleep),
    )
    return LoadedCore(core=core, info=info)


_StepExecutor = LocalExecutor[StepPlan, StepResult]


def _make_executor(
    config: EngineConfig,
    source: Source,
    info: ModelInfo,
    blocks: CacheBlocks,
    model: LoadedModel,
    *,
    processors: Sequence[type[LogitsProcessor]],
) -> _StepExecutor:
    """Allocate the KV cache of a loaded model, and run its first steps."""
    from ..model.runner import ModelRunner

    def load_tokenizer() -> Any:
        # Imported here, because only the first grammar needs it.
        from ..render.text.loading import load_grammar_tokenizer

        return load_grammar_tokenizer(source.weights.folder, info)

    runner = ModelRunner(
        model,
        num_blocks=blocks.num_blocks,
        num_window_blocks=blocks.num_window_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=info.max_model_len,
        num_checkpoints=config.cache.count_checkpoints(config.scheduler.max_num_seqs),
        logits_processors=processors,
        load_tokenizer=load_tokenizer,
        read_gguf_adapter=read_gguf_adapter,
    )
    runner.warm_up()
    return make_local_executor(
        runner, model.device.type, depth=1 + config.scheduler.async_scheduling
    )


def _load_again(
    config: EngineConfig,
    source: Source,
    make_executor: Callable[[LoadedModel], _StepExecutor],
) -> _StepExecutor:
    """Load a model after a sleep, with the KV cache that it had."""
    file = None if source.weights.gguf is None else read_gguf(source.weights.gguf)
    return make_executor(_load(config.model, source.weights, file)[0])


def _load(
    config: ModelConfig, weights: Weights, file: GgufFile | None
) -> tuple[LoadedModel, Weights]:
    """Load a model; also return its weights as they were loaded.

    Args:
      file: the GGUF file of the weights, if there is one.
    """
    from ..model.open import load, load_blocks

    if file is not None:
        model = load_blocks(weights.folder, config, file, name=weights.name)
        if model is not None:
            return model, weights
    weights = complete_weights(weights)
    model = load(weights.folder, config, name=weights.name)
    trim_heap()
    return model, weights


async def build_pipeline_core(
    config: EngineConfig,
    stack: AsyncExitStack,
    source: Source,
    processors: Sequence[type[LogitsProcessor]],
) -> LoadedCore:
    """Open a pipeline and make its core.

    Args:
      stack: of the stages; each sleep ends them.
    """
    # Stages that torchrun has started cannot be started again here.
    may_sleep = find_torchrun() is None
    if not may_sleep and config.sleep.sleep_idle_seconds is not None:
        raise InvalidConfig(
            "sleep_idle_seconds",
            "torchrun starts the stages, and they end with the engine",
        )
    opened = config
    pipeline = await stack.enter_async_context(open_pipeline(config))
    max_num_seqs, blocks = pipeline.max_num_seqs, pipeline.blocks
    config = set_max_num_seqs(config, max_num_seqs)
    info = limit_images(pipeline.info, config, pipeline.device_type)
    info = _complete_info(
        config, source, info, blocks, processors, pipeline.device_type
    )

    async def connect(pipeline: Pipeline) -> PipelineExecutor:
        pipeline = replace(pipeline, blocks=blocks, max_num_seqs=max_num_seqs)
        return await pipeline.connect(config, info.max_model_len)

    async def open_again(stack: AsyncExitStack) -> PipelineExecutor:
        return await connect(await stack.enter_async_context(open_pipeline(opened)))

    executor = RestingExecutor(
        await connect(pipeline),
        stack,
        open_again,
        trim=trim_memory,
        telling_shortage=telling_shortage,
    )
    scheduler = make_scheduler(config, info, blocks, pipeline.device_type)
    _log_loaded(info, config, blocks)
    core = LocalCore(
        scheduler,
        executor,
        info=info,
        max_adapters=config.model.max_adapters,
        memory=executor if may_sleep else None,
        idle=make_idle_rule(config.sleep),
    )
    return LoadedCore(core=core, info=info)


def _complete_info(
    config: EngineConfig,
    source: Source,
    info: ModelInfo,
    blocks: CacheBlocks,
    processors: Sequence[type[LogitsProcessor]],
    device_type: str,
    file: GgufFile | None = None,
) -> ModelInfo:
    """Add to a model's facts the facts that depend on the configuration."""
    template = read_template(config.model.chat_template)
    ends = find_turn_ends(source.weights, info, template)
    return replace(
        limit_length(add_names(info, config.model), config, blocks.num_blocks),
        eos_token_ids=info.eos_token_ids | ends,
        default_sampling=info.default_sampling or config.model.own_sampling,
        stop_repetition=config.model.repetition_detection,
        fingerprint=fingerprint_model(
            source.weights.folder,
            *(info.dtype, info.kernels, config.model.kv_cache_dtype),
        ),
        weights=measure_weights(source.weights, file),
        device_type=device_type,
        cache_bytes=_count_cache_bytes(config, info, blocks),
        logits_processors=tuple(processor.name for processor in processors),
        max_logprobs=config.model.max_logprobs,
    )


def _count_cache_bytes(
    config: EngineConfig, info: ModelInfo, blocks: CacheBlocks
) -> int:
    """Return the size of the cache of keys, values and states."""
    per_token, num_states = info.kv_bytes_per_token, config.scheduler.max_num_seqs
    num_bytes = 0
    if blocks.num_window_blocks is not None and info.windows is not None:
        per_token -= info.windows.kv_bytes_per_token
        num_bytes = blocks.num_window_blocks * info.windows.kv_bytes_per_token
    num_bytes = config.cache.block_size * (num_bytes + blocks.num_blocks * per_token)
    num_states += config.cache.count_checkpoints(num_states)
    return num_bytes + num_states * info.state_bytes


def _log_loaded(info: ModelInfo, config: EngineConfig, blocks: CacheBlocks) -> None:
    block_size = config.cache.block_size
    logger.info("loaded %s", info.name)
    logger.info("longest sequence: %d tokens", info.max_model_len)
    if info.default_sampling:
        values = [f"{name} {value:g}" for name, value in info.default_sampling]
        logger.info("sampling unless a request says otherwise: %s", ", ".join(values))
    rule = info.stop_repetition
    if rule is not None and rule.is_on:
        logger.info(
            "sequences end after %d copies of a pattern of %d to %d tokens",
            *(rule.min_count, rule.min_pattern_size, rule.max_pattern_size),
        )
    kept = config.model.kv_cache_dtype
    logger.info(
        "KV cache: %d blocks of %d tokens%s",
        *(blocks.num_blocks, block_size, "" if kept == "auto" else f" in {kept}"),
    )
    if blocks.num_window_blocks is not None and info.windows is not None:
        logger.info(
            "layers with windows of up to %d tokens: %d blocks of their own",
            *(info.windows.window, blocks.num_window_blocks),
        )
    if info.state_bytes:
        logger.info(
            "states: %.1f MiB for each of %d sequences, and %d copies for prefixes",
            info.state_bytes / 2**20,
            config.scheduler.max_num_seqs,
            config.cache.count_checkpoints(config.scheduler.max_num_seqs),
        )
