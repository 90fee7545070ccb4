"""Refusals of options that have no effect on the model that is served."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import EngineConfig, list_changes
from ..errors import InvalidConfig
from ..types.pooling import Task

# The options that have an effect on some models only. Switches and choices that can only
# turn something off are left out (--no-prefix-caching, --no-async-scheduling,
# --generation-config none): a model that lacks it obeys them.
_FOR_GENERATION = (
    *("logits_processor", "kv_cache_memory", "kv_cache_fraction", "block_size"),
    *("max_step_seconds", "enable_prompt_embeds", "reasoning_parser", "quantization"),
    *("tool_call_parser", "max_logprobs", "attention_backend", "stop_repetition"),
)
_FOR_POOLING = ("pooling", "matryoshka", "long_texts")
_FOR_STAGES = ("step_timeout",)
_FOR_IMAGES = (
    *("max_images", "max_image_bytes", "max_image_pixels", "allowed_media_domains"),
    *("allowed_local_media_path", "media_timeout", "media_num_connections"),
    *("media_num_workers", "max_images_memory", "processor_cache_memory"),
)

# Values that turn off images, their cache, or a parser. A model without them obeys.
_OFF = (0, "0", "none")


def check_options(config: EngineConfig, task: Task, *, takes_images: bool) -> None:
    """Refuse options that differ from their defaults and have no effect.

    Raises:
      InvalidConfig
    """
    reasons = dict(_list_unused(config, task, takes_images))
    for option, value in list_changes(config):
        if option.name in reasons and value not in _OFF:
            raise InvalidConfig(option.name, reasons[option.name])


def _list_unused(
    config: EngineConfig, task: Task, takes_images: bool
) -> Iterator[tuple[str, str]]:
    """Yield the names of options without an effect, each with the reason."""
    if task == "generate":
        reason = "the model is served to generate and does not pool; see --task"
        yield from ((name, reason) for name in _FOR_POOLING)
    else:
        reason = f"the model is served for {task} and does not write"
        yield from ((name, reason) for name in _FOR_GENERATION)
    if not takes_images:
        reason = f"{config.model.model} takes no images"
        yield from ((name, reason) for name in _FOR_IMAGES)
    if config.parallel.world_size == 1:
        yield from ((name, "there are no stages") for name in _FOR_STAGES)
