"""The model that a configuration names, found before it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
import json
import logging
from pathlib import Path
from typing import Literal

from ..config import EngineConfig, list_changes, reset_options
from ..errors import InvalidConfig
from ..types.architecture import guess_task, is_conditional
from ..types.model_info import SEES_NO_IMAGES
from ..types.pooling import Task
from ..types.sentence import SentenceFolder
from ..weights import Weights, read_sentence_folder, resolve_description
from .first_checks import check_description, check_first

logger = logging.getLogger(__name__)

# The models that a caller accepts: models that generate, models that pool, or all.
ModelKind = Literal["generate", "pooling", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place of a model, and its task.

    Args:
      weights: the folder; the weights in it may still have to be fetched.
      sentence: the contents of sentence-transformers' files, if there are any.
      image_refusal: the reason why it takes no images; None if it takes them.
    """

    weights: Weights
    task: Task
    sentence: SentenceFolder | None = None
    image_refusal: str | None = SEES_NO_IMAGES


def find_source(
    config: EngineConfig, model_kind: ModelKind, *, needs_weights: bool = True
) -> Source:
    """Find a model; download all files but its weights if they are not here.

    Args:
      needs_weights: a folder on this machine must have its weights.

    Raises:
      StartupError
    """
    # Before the imports, so that a wrong option or name is reported at once.
    weights, sentence = _find_files(config, model_kind, needs_weights)
    task = _read_task(weights.folder, sentence, config)
    # To ask transformers would take longer than to load a small model.
    if task == "generate" and _is_clear(weights):
        source = Source(weights=weights, task=task, sentence=sentence)
        return _check_source(source, config, model_kind)
    from ..model.encoder import find_task
    from ..model.loading.files.facts import find_image_refusal

    task = find_task(weights.folder, sentence, config.pooling)
    source = Source(weights=weights, task=task, sentence=sentence)
    if task == "generate":
        refusal = find_image_refusal(weights.folder, config.model)
        source = replace(source, image_refusal=refusal)
    return _check_source(source, config, model_kind)


def guess_source(config: EngineConfig, model_kind: ModelKind) -> Source:
    """Find a model for which an engine process calls find_source.

    It does not import torch, unless the model may take images, or its files do not
    name its task. It does not check whether the model can be served.

    Raises:
      StartupError
    """
    weights, sentence = _find_files(config, model_kind)
    task = _read_task(weights.folder, sentence, config)
    if task is None:
        return find_source(config, model_kind)
    source = Source(weights=weights, task=task, sentence=sentence)
    return _check_source(source, config, model_kind)


def _find_files(
    config: EngineConfig, model_kind: ModelKind, needs_weights: bool = True
) -> tuple[Weights, SentenceFolder | None]:
    if model_kind == "pooling":
        check_one_process(config)
    check_first(config)
    weights = resolve_description(config.model.model, needs_weights=needs_weights)
    check_description(weights.folder, config)
    return weights, read_sentence_folder(weights.folder)


def _read_task(
    folder: Path, sentence: SentenceFolder | None, config: EngineConfig
) -> Task | None:
    """Return the task of a model without images, if its config.json is clear."""
    path = folder / (sentence.transformer_path if sentence is not None else "")
    try:
        described = json.loads((path / "config.json").read_bytes())
        architecture = str(described["architectures"][0])
    # A file without an architecture, or a broken one, which find_source refuses.
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if "vision_config" in described or is_conditional(architecture):
        return None
    if config.pooling.task != "auto":
        return config.pooling.task
    return guess_task(architecture, sentence) or "embed"


def _is_clear(weights: Weights) -> bool:
    """Return whether config.json needs no reading by transformers."""
    from ..model.loading.plain.description import describes_plain_llama

    # Of a GGUF file, config.json is our own.
    return weights.gguf is not None or describes_plain_llama(weights.folder)


def _check_source(
    source: Source, config: EngineConfig, model_kind: ModelKind
) -> Source:
    """Refuse options and callers that do not fit the model."""
    if source.task != "generate":
        check_one_process(config)
    _check_task(source.task, config.model.model, model_kind)
    check_options(config, source.task, takes_images=source.image_refusal is None)
    return source


def check_one_process(config: EngineConfig) -> None:
    """Refuse several processes for a model that pools."""
    for option in ("pipeline_parallel_size", "tensor_parallel_size"):
        if getattr(config.parallel, option) > 1:
            raise InvalidConfig(option, "a model that pools runs in one process")


def _check_task(task: Task, model: str, model_kind: ModelKind) -> None:
    if model_kind == "generate" and task != "generate":
        raise InvalidConfig(
            "model", f"{model} is served for {task}: open it by open_pooling_engine"
        )
    if model_kind == "pooling" and task == "generate":
        raise InvalidConfig(
            "model", f"{model} generates: open it by open_engine, or name a task"
        )


def read_template(given: str | None) -> str | None:
    """Return the template of --chat-template, which is a file or the template itself.

    Raises:
      InvalidConfig: the file cannot be read.
    """
    if given is None or "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig.of_file("chat_template", "read", given, error) from error


# The options that have an effect on some models only. Switches and choices that can only
# turn something off are left out (--no-prefix-caching, --no-async-scheduling,
# --generation-config none): a model that lacks it obeys them.
_FOR_GENERATION = (
    *("logits_processor", "kv_cache_memory", "kv_cache_fraction", "block_size"),
    *("max_step_seconds", "enable_prompt_embeds", "reasoning_parser", "quantization"),
    *("tool_call_parser", "max_logprobs", "attention_backend", "stop_repetition"),
    *("adapter", "max_adapters", "kv_cache_dtype"),
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


def drop_unused(
    config: EngineConfig, shared: Collection[str], told: Collection[str]
) -> EngineConfig:
    """Return the configuration without those of some options that have no effect.

    Args:
      told: options of these that the log names, because the operator wrote them.

    Raises:
      StartupError: the model cannot be found or read.
    """
    # Not the others: --task, for one, decides which have an effect.
    conditional = {*_FOR_GENERATION, *_FOR_POOLING, *_FOR_IMAGES, *_FOR_STAGES} & {
        *shared
    }
    source = guess_source(reset_options(config, conditional), "all")
    unused = _list_unused(config, source.task, source.image_refusal is None)
    dropped = {name for name, _ in unused} & conditional
    for option, _ in list_changes(config):
        if option.name in dropped and option.name in told:
            logger.info("%s has no effect on %s", option.flag, config.model.model)
    return reset_options(config, dropped)


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
