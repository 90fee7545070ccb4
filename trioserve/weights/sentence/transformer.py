"""Reads the settings of a sentence-transformers Transformer module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import UnsupportedModel
from .fields import Fields, read_fields
from .modules import Entry, join

# Of the first one that is there. Source: sentence-transformers 6.2,
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

# Ways to call a tokenizer that leave its tokens as they are.
_HARMLESS = {"padding", "pad_to_multiple_of", "return_tensors"}

# transformers writes 1e30 where a tokenizer has no limit.
_NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSettings:
    """What the file says, and what its tokenizer's does.

    Args:
      fields: the file's own, empty where there is none.
      max_length: of texts in tokens; None is what the transformer can read.
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
        # An empty one counts as missing there, too.
        if fields is not None and fields.names():
            return fields
    return Fields({}, folder, join(path, _SETTINGS_FILES[0]))


def _read_max_length(folder: Path, path: str, fields: Fields) -> int | None:
    # Until version 5.4 max_seq_length was written, which went before the tokenizer's
    # own limit; since then it is the tokenizer's.
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
    """Refuse what gives other vectors than the last layer's, or other tokens.

    Raises:
      UnsupportedModel: so it is.
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
        raise UnsupportedModel(entry.type, f"it makes {output} of texts")


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
