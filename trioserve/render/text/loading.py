"""Loads the tokenizer and the chat template of a model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from ...errors import InvalidConfig, UnsupportedModel, WeightsBroken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer that neither truncates nor pads.

    Raises:
      WeightsBroken: the folder holds none that can be read.
      UnsupportedModel: it is not a fast one.
    """
    # Imported here because it takes seconds, and rooms that import render may never
    # load a tokenizer.
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # Broken files raise whatever their parser raises.
    except Exception as error:
        raise WeightsBroken(str(folder), f"its tokenizer: {error}") from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(
            type(tokenizer).__name__, "it has no fast tokenizer (tokenizer.json)"
        )
    # Set for good, before threads share the tokenizer. Some files ask for truncation,
    # which would cut prompts in silence.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def set_chat_template(
    tokenizer: PreTrainedTokenizerBase, folder: Path, replacement: str | None
) -> None:
    """Compile the template: its mistakes are told before the first request.

    Args:
      replacement: takes the place of the model's own.

    Raises:
      WeightsBroken: the model's own is not a template.
      InvalidConfig: the replacement is none.
    """
    if replacement is not None:
        tokenizer.chat_template = replacement
    if tokenizer.chat_template is None:
        return
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
        if replacement is not None:
            raise InvalidConfig("chat_template", reason) from error
        raise WeightsBroken(str(folder), f"its chat template: {reason}") from error
    # Any other complaint is about this message; a request will hear it as a 400.
    except Exception:
        return
