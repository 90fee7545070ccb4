"""Loads the tokenizer and the chat template of a model's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import jinja2

from ...errors import InvalidConfig, UnsupportedModel, WeightsBroken
from ...types.model_info import ModelInfo
from .model_tokenizer import ModelTokenizer, write_rules
from .sandbox import compile_template
from .tokenizer_reading import read_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from transformers import PreTrainedTokenizerBase

# The files from which a tokenizer can be made.
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model"),
)


def load_tokenizer(folder: Path) -> ModelTokenizer:
    """Load a tokenizer that neither truncates nor pads.

    transformers, and with it torch, is imported only if it is needed.

    Raises:
      WeightsBroken: the folder holds no tokenizer that can be read.
      UnsupportedModel: it is not a fast tokenizer.
    """
    found = read_tokenizer(folder)
    if found is None:
        return describe_tokenizer(load_with_transformers(folder), folder)
    return found


def load_grammar_tokenizer(folder: Path, info: ModelInfo) -> LLTokenizer:
    """Load a tokenizer in the form that grammars need; a third of a second for 49,152 tokens.

    Raises:
      ValueError: grammars cannot use the tokenizer.
      WeightsBroken, UnsupportedModel: as load_tokenizer.
    """
    # Imported here, because only the first grammar needs it.
    from ...grammar.matchers import make_tokenizer

    return make_tokenizer(
        load_tokenizer(folder).backend.to_str(),
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
    )


def load_with_transformers(folder: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer as an object of transformers; otherwise as load_tokenizer."""
    # Imported here, because it takes seconds, and most tokenizers do not need it.
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # Broken files raise whatever their parser raises, sometimes with lines of advice.
    except Exception as error:
        if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            reason = (
                "the folder has no tokenizer.json; copy it from where the model is from"
            )
            raise WeightsBroken(str(folder), reason) from error
        reason = " ".join(str(error).split())
        raise WeightsBroken(str(folder), f"its tokenizer: {reason}") from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            type(tokenizer).__name__, "it has no fast tokenizer (tokenizer.json)"
        )
    # Set once, before threads share the tokenizer. Some files ask for truncation, which
    # would cut prompts without an error.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def describe_tokenizer(
    tokenizer: PreTrainedTokenizerBase, folder: Path
) -> ModelTokenizer:
    """Describe a tokenizer of transformers; both share the library's object."""
    # transformers declares no types for these.
    loaded: Any = tokenizer
    templates = loaded.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    return ModelTokenizer(
        source=str(folder),
        class_name=type(tokenizer).__name__,
        backend=loaded.backend_tokenizer,
        special_tokens=loaded.special_tokens_map,
        extra_special_tokens=tuple(loaded.extra_special_tokens),
        chat_templates=templates,
        response_rules=write_rules(getattr(loaded, "response_template", None)),
        padding_side=cast(Literal["left", "right"], loaded.padding_side),
    )


def set_chat_template(
    tokenizer: ModelTokenizer, replacement: str | None
) -> ModelTokenizer:
    """Compile the chat template, so that its mistakes show before the first request.

    Args:
      replacement: used instead of the model's own template.

    Returns:
      The tokenizer with this template.

    Raises:
      WeightsBroken: the model's own template has a syntax error.
      InvalidConfig: the replacement has one.
    """
    if replacement is not None:
        # The rules belong to the model's own template.
        templates = {"default": replacement}
        tokenizer = replace(tokenizer, chat_templates=templates, response_rules="")
    template = tokenizer.chat_templates.get("default")
    if template is None:
        return tokenizer
    try:
        compile_template(template)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
        if replacement is not None:
            raise InvalidConfig("chat_template", reason) from error
        raise WeightsBroken(tokenizer.source, f"its chat template: {reason}") from error
    return tokenizer
