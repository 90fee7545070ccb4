"""Limits that depend on the model and the device: tokens of a step, lengths, memory."""

from __future__ import annotations

from dataclasses import replace
import logging
from typing import TYPE_CHECKING

from ..config import EngineConfig, SchedulerConfig
from ..errors import InvalidConfig
from ..scheduler.generation.scheduler import Scheduler
from ..scheduler.pooling.scheduler import PoolingScheduler
from ..types.model_info import ModelInfo
from ..types.sampling import DEFAULT_MAX_LOGPROBS
from ..types.windows import CacheBlocks

if TYPE_CHECKING:
    from ..model.loading.files.cache_outline import Outline
    from ..model.runtimes.loaded import LoadedModel

logger = logging.getLogger(__name__)


def count_sequences(config: SchedulerConfig) -> int:
    """Return the number of sequences that may run and wait together."""
    return config.max_num_seqs + config.max_queued_requests


def check_room(
    outline: Outline | None, config: EngineConfig, *, num_sharing: int = 1
) -> None:
    """Refuse a KV cache that is too small, before weights are read.

    Args:
      outline: None if only the loaded model has these facts; nothing is checked then.
      num_sharing: as in model.count_fitting_blocks.

    Raises:
      InvalidConfig
    """
    if outline is None:
        return
    # Imported here, because it needs torch.
    from ..model.attention.cache_memory import (
        count_fitting_blocks,
        count_fitting_states,
    )

    blocks = count_fitting_blocks(
        outline.kv_bytes_per_token,
        config.cache,
        windows=outline.windows,
        max_chunk=count_step_tokens(config.scheduler, outline.device.type),
        state_bytes=outline.state_bytes,
        max_num_seqs=count_fitting_states(
            outline.state_bytes,
            config.cache,
            max_num_seqs=config.scheduler.max_num_seqs,
            device=outline.device,
            num_sharing=num_sharing,
        ),
        max_model_len=outline.max_model_len,
        wanted_len=config.model.max_model_len,
        device=outline.device,
        num_sharing=num_sharing,
    )
    _check_length(config, blocks.num_blocks)


def limit_sequences(
    config: EngineConfig, model: LoadedModel, *, num_sharing: int = 1
) -> EngineConfig:
    """Let so many sequences run at once as there is memory for their states.

    Args:
      num_sharing: as in model.count_fitting_states.
    """
    # Imported here, because it needs torch.
    from ..model.attention.cache_memory import count_fitting_states

    wanted = config.scheduler.max_num_seqs
    fitting = count_fitting_states(
        model.info.state_bytes,
        config.cache,
        max_num_seqs=wanted,
        device=model.device,
        num_sharing=num_sharing,
    )
    if fitting < wanted:
        logger.info(
            "--max-num-seqs is %d, not %d: states take at most half of the KV cache's "
            "memory; --kv-cache-memory gives more",
            *(fitting, wanted),
        )
    return set_max_num_seqs(config, fitting)


def set_max_num_seqs(config: EngineConfig, count: int) -> EngineConfig:
    """Return a configuration with another number of running sequences."""
    scheduler = replace(config.scheduler, max_num_seqs=count)
    return replace(config, scheduler=scheduler)


def limit_length(info: ModelInfo, config: EngineConfig, num_blocks: int) -> ModelInfo:
    """Limit sequences to the KV cache: a longer one would wait for blocks forever."""
    _check_length(config, num_blocks)
    room = num_blocks * config.cache.block_size
    return replace(info, max_model_len=min(info.max_model_len, room))


def limit_images(info: ModelInfo, config: EngineConfig, device_type: str) -> ModelInfo:
    """Limit images that a step computes whole: a longer one would wait for ever."""
    if not info.joins_images:
        return info
    scheduler = config.scheduler
    # All other sequences may decode in the same step.
    room = count_step_tokens(scheduler, device_type) - (scheduler.max_num_seqs - 1)
    return replace(info, max_image_tokens=room)


def _check_length(config: EngineConfig, num_blocks: int) -> None:
    room = num_blocks * config.cache.block_size
    if config.model.max_model_len is not None and config.model.max_model_len > room:
        raise InvalidConfig(
            "max_model_len",
            f"the KV cache holds {room} tokens; give it more by --kv-cache-memory",
        )


def measure_step_bytes(config: EngineConfig, model: LoadedModel) -> int:
    """Return the bytes that steps need, if the KV cache takes the rest."""
    # Imported here, because it needs torch.
    from ..model.trial import StepLimits, measure_steps

    if config.cache.kv_cache_memory is not None:
        return 0
    max_logprobs = config.model.max_logprobs
    if max_logprobs < 0:
        # A step with the whole vocabulary for each token would leave no memory at all.
        max_logprobs = DEFAULT_MAX_LOGPROBS
    limits = StepLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_tokens=count_step_tokens(config.scheduler, model.device.type),
        max_model_len=model.info.max_model_len,
        max_logprobs=max_logprobs,
        block_size=config.cache.block_size,
    )
    step_bytes = measure_steps(model, limits)
    if step_bytes:
        logger.info("steps need %.2f GiB beside weights", step_bytes / 2**30)
    return step_bytes


def make_scheduler(
    config: EngineConfig, info: ModelInfo, blocks: CacheBlocks, device_type: str
) -> Scheduler:
    num_stages = config.parallel.pipeline_parallel_size
    return Scheduler(
        num_blocks=blocks.num_blocks,
        num_window_blocks=blocks.num_window_blocks,
        window=None if info.windows is None else info.windows.window,
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=count_step_tokens(config.scheduler, device_type),
        max_model_len=info.max_model_len,
        prefix_caching=config.cache.prefix_caching,
        num_checkpoints=(
            config.cache.count_checkpoints(config.scheduler.max_num_seqs)
            if info.state_bytes
            else None
        ),
        # Only the last stage knows which rows are skipped; the states of the others have
        # gone on.
        can_recompute=not info.state_bytes or num_stages == 1,
        num_stages=num_stages,
        max_step_seconds=_resolve_step_seconds(config.scheduler, device_type),
    )


def count_step_tokens(config: SchedulerConfig, device_type: str) -> int:
    """Return the most tokens of a step of a model that generates."""
    budget = _resolve_budget(config, device_type, cpu=512, gpu=2048)
    # Every running sequence must be able to decode in every step.
    return max(budget, config.max_num_seqs)


def make_pooling_scheduler(
    config: SchedulerConfig, device_type: str
) -> PoolingScheduler:
    return PoolingScheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=_resolve_budget(
            config, device_type, cpu=2048, gpu=16384
        ),
    )


def _resolve_step_seconds(config: SchedulerConfig, device_type: str) -> float:
    """Return the limit of a step that computes prompts, or that several requests share."""
    if config.max_step_seconds is not None:
        return config.max_step_seconds
    return 0.25 if device_type == "cpu" else 0.1


def _resolve_budget(
    config: SchedulerConfig, device_type: str, *, cpu: int, gpu: int
) -> int:
    """Return the most tokens of a step: the option, or the device's default."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return cpu if device_type == "cpu" else gpu
