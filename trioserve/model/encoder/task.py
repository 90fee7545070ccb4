"""The task of a model, found from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    PreTrainedConfig,
)

from ...config import PoolingConfig
from ...errors import UnsupportedModel
from ...types.architecture import HEADS, find_head, guess_task
from ...types.pooling import PoolingTask
from ...types.sentence import SentenceFolder
from ..loading.files.config_file import read_config


def find_task(
    folder: Path, sentence: SentenceFolder | None, config: PoolingConfig
) -> Literal["generate"] | PoolingTask:
    """Return the task of a model: the option --task, or else the task in its files.

    Args:
      folder: holds config.json, perhaps in a sub-folder (sentence.transformer_path).
      sentence: the contents of sentence-transformers' files.

    Raises:
      UnsupportedModel: its architecture cannot do the task of the configuration.
      WeightsBroken: config.json cannot be read.
    """
    model_config = read_config(find_transformer(folder, sentence))
    architecture = name_architecture(model_config)
    head = find_head(architecture)
    if config.task == "auto":
        return _guess(model_config, architecture, head, sentence)
    if config.task in HEADS.values() and config.task != head:
        what = "texts" if config.task == "classify" else "tokens"
        raise UnsupportedModel(architecture, f"it has no head that classifies {what}")
    if config.task == "generate" and not _may_generate(model_config, head):
        raise UnsupportedModel(architecture, "it does not generate text")
    return config.task


def find_transformer(folder: Path, sentence: SentenceFolder | None) -> Path:
    """Return the folder with config.json and the weights."""
    return folder / (sentence.transformer_path if sentence is not None else "")


def name_architecture(config: PreTrainedConfig) -> str:
    return str((config.architectures or [config.model_type])[0])


def _guess(
    config: PreTrainedConfig,
    architecture: str,
    head: PoolingTask | None,
    sentence: SentenceFolder | None,
) -> Literal["generate"] | PoolingTask:
    named = guess_task(architecture, sentence)
    if named is not None:
        return named
    is_named = bool(config.architectures)
    return "embed" if is_named or not _may_generate(config, head) else "generate"


def _may_generate(config: PreTrainedConfig, head: PoolingTask | None) -> bool:
    """Return whether a model is a decoder.

    Encoders can be built as decoders, but were not trained as such.
    """
    if head is not None:
        return False
    if (
        config.is_encoder_decoder
        or type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    ):
        # load_model refuses models that cannot be served, and says why.
        return True
    return (
        type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    )
