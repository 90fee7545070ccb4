"""The model that a configuration names, found before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config import EngineConfig
from ..errors import InvalidConfig
from ..types.pooling import Task
from ..types.sentence import SentenceFolder
from ..weights import Weights, read_sentence_folder, resolve_description
from .unused_options import check_options

# The models that a caller accepts: those that generate, those that pool, or all.
ModelKind = Literal["generate", "pooling", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place of a model, and its task.

    Args:
      weights: the folder; the weights in it may still have to be fetched.
      sentence: the contents of sentence-transformers' files, if there are any.
      takes_images: False in a pipeline's engine, which leaves images to the stages.
    """

    weights: Weights
    task: Task
    sentence: SentenceFolder | None = None
    takes_images: bool = False


def find_source(config: EngineConfig, model_kind: ModelKind) -> Source:
    """Find a model; download all files but its weights if they are not here.

    Raises:
      StartupError
    """
    # Before the imports, so that a wrong option or name is reported at once.
    if model_kind == "pooling":
        check_one_process(config)
    weights = resolve_description(config.model.model)
    sentence = read_sentence_folder(weights.folder)
    from ..model import takes_images
    from ..model.encoder import find_task

    task = find_task(weights.folder, sentence, config.pooling)
    if task != "generate":
        check_one_process(config)
    _check_task(task, config.model.model, model_kind)
    has_vision = task == "generate" and takes_images(weights.folder)
    check_options(config, task, takes_images=has_vision)
    return Source(
        weights=weights, task=task, sentence=sentence, takes_images=has_vision
    )


def check_one_process(config: EngineConfig) -> None:
    """Refuse a pipeline for a model that pools."""
    if config.parallel.pipeline_parallel_size > 1:
        raise InvalidConfig(
            "pipeline_parallel_size", "a model that pools runs in one process"
        )


def _check_task(task: Task, model: str, model_kind: ModelKind) -> None:
    if model_kind == "generate" and task != "generate":
        raise InvalidConfig(
            "model", f"{model} is served for {task}: open it by open_pooling_engine"
        )
    if model_kind == "pooling" and task == "generate":
        raise InvalidConfig(
            "model", f"{model} generates: open it by open_engine, or name a task"
        )
