"""Reads the settings in a folder of sentence-transformers, PyLate or ColBERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import UnsupportedModel
from ...types.sentence import SentenceFolder
from .fields import Fields, read_fields
from .late_interaction import (
    is_late_interaction,
    is_stanford,
    read_late_interaction,
    read_stanford,
)
from .modules import (
    Entry,
    list_entries,
    read_modules,
    read_pooling,
    read_prompts,
    refuse,
)
from .transformer import check_transformer, read_transformer

_CONFIG = "config_sentence_transformers.json"


def read_sentence_folder(folder: Path) -> SentenceFolder | None:
    """Read the settings of embeddings. Only JSON is read: no code, no weights.

    Returns:
      The settings; None for a folder of transformers alone, or of a cross-encoder,
      whose config.json has all settings.

    Raises:
      WeightsBroken: a file is not JSON, or not in the form of sentence-transformers.
      UnsupportedModel: a module of the model cannot be run.
    """
    if (folder / "modules.json").is_file():
        return _read_listed(folder)
    return read_stanford(folder) if is_stanford(folder) else None


def _read_listed(folder: Path) -> SentenceFolder | None:
    entries = list_entries(folder)
    config = read_fields(folder, _CONFIG) or Fields({}, folder, _CONFIG)
    if config.text("model_type") == "CrossEncoder":
        _check_cross_encoder(folder, entries, config)
        return None
    if any(entry.kind == "Pooling" for entry in entries):
        return _read_pooled(folder, entries, config)
    if is_late_interaction(config):
        return read_late_interaction(folder, entries, config)
    raise refuse(entries[-1], "no module of the folder pools tokens")


def _read_pooled(
    folder: Path, entries: Sequence[Entry], config: Fields
) -> SentenceFolder:
    transformer = read_transformer(folder, entries[0].path)
    check_transformer(entries[0], transformer)
    if entries[1].kind != "Pooling":
        raise refuse(entries[1], "nothing can stand between Transformer and Pooling")
    modes, pools_prompts = read_pooling(folder, entries[1])
    prompts, default = read_prompts(config)
    return SentenceFolder(
        transformer_path=entries[0].path,
        max_seq_length=transformer.max_length,
        lowercases=transformer.lowercases,
        modes=modes,
        pools_prompts=pools_prompts,
        modules=read_modules(folder, entries[2:], "sentence_embedding"),
        prompts=prompts,
        default_prompt=default,
        truncate_dim=config.count("truncate_dim"),
    )


def _check_cross_encoder(
    folder: Path, entries: Sequence[Entry], config: Fields
) -> None:
    """Refuse a cross-encoder that does more than a classifier of transformers."""
    if len(entries) > 1:
        raise refuse(entries[1], "a cross-encoder's scores come from its Transformer")
    task = read_transformer(folder, entries[0].path).task
    if task != "sequence-classification" or entries[0].path:
        raise refuse(entries[0], f"as a cross-encoder's, with the task {task}")
    if read_prompts(config)[1] is not None:
        raise UnsupportedModel("CrossEncoder", "it has a default prompt")
