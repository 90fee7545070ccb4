"""Reads the settings of a sentence-transformers Transformer module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import UnsupportedModel
from .fields import Fields, read_fields
from .modules import Entry, join

# The first one that exists is read. Source: sentence-transformers 6.2,
# base/modules/transformer.py, Transformer.load_config.
_SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

# Options of a tokenizer's call that do not change its tokens.
_HARMLESS = {"padding", "pad_to_multiple_of", "return_tensors"}

# transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSettings:
    """Settings from the module's file, and from its tokenizer's file.

    Args:
      fields: the fields of the module's file; empty if there is no file.
      max_length: the most tokens of a text; None for as many as the transformer reads.
    """

    fields: Fields
    max_length: int | None
    lowercases: bool
    task: str


def read_transformer(folder: Path, path: str) -> TransformerSettings:
    """Read the settings of the transformer in a folder's subfolder, "" for its own."""
    fields = _find_settings(folder, path)
    return TransformerSettings(
        fields=fields,
        max_length=_read_max_length(folder, path, fields),
        lowercases=fields.flag("do_lower_case") or False,
        task=fields.text("transformer_task") or "feature-extraction",
    )


def _find_settings(folder: Path, path: str) -> Fields:
    for name in _SETTINGS_FILES:
        fields = read_fields(folder, join(path, name))
        # sentence-transformers ignores an empty file, too.
        if fields is not None and fields.names():
            return fields
    return Fields({}, folder, join(path, _SETTINGS_FILES[0]))


def _read_max_length(folder: Path, path: str, fields: Fields) -> int | None:
    # Before version 5.4 sentence-transformers wrote max_seq_length, which had
    # precedence over the tokenizer's limit. Since then it writes the tokenizer's limit.
    processor = fields.object("processor_kwargs") or fields.object("tokenizer_args")
    limit = processor.count("model_max_length") if processor is not None else None
    limit = limit or fields.count("max_seq_length")
    return limit or _read_tokenizer_limit(folder, path)


def _read_tokenizer_limit(folder: Path, path: str) -> int | None:
    tokenizer = read_fields(folder, join(path, "tokenizer_config.json"))
    if tokenizer is None:
        return None
    limit = tokenizer.number("model_max_length")
    return int(limit) if limit is not None and 1 <= limit < _NO_LIMIT else None


def check_transformer(entry: Entry, settings: TransformerSettings) -> None:
    """Refuse settings that change the tokens, or take vectors from elsewhere.

    Raises:
      UnsupportedModel: a setting does so.
    """
    if settings.task != "feature-extraction":
        raise UnsupportedModel(entry.type, f"its task is {settings.task}")
    _check_output(entry, settings.fields)
    _check_processing(entry, settings.fields)


def _check_output(entry: Entry, fields: Fields) -> None:
    modalities = fields.object("modality_config")
    if modalities is None:
        return
    if "message" in modalities:
        reason = "texts would have to go through its chat template"
        raise UnsupportedModel(entry.type, reason)
    text = modalities.object("text")
    output = text.text("method_output_name") if text is not None else None
    if output != "last_hidden_state":
        raise UnsupportedModel(entry.type, f"it turns texts into {output}")


def _check_processing(entry: Entry, fields: Fields) -> None:
    processing = fields.object("processing_kwargs")
    if processing is None:
        return
    for modality in ("text", "common"):
        options = processing.object(modality)
        names = options.names() - _HARMLESS if options is not None else set()
        if names:
            reason = f"its processing_kwargs have {min(names)!r}"
            raise UnsupportedModel(entry.type, reason)
