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
      WeightsBroken: the folder holds no tokenizer that can be read.
      UnsupportedModel: it is not a fast tokenizer.
    """
    # Imported here, because it takes seconds, and many importers of render load none.
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
    # Set once, before threads share the tokenizer. Some files ask for truncation, which
    # would cut prompts without an error.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def set_chat_template(
    tokenizer: PreTrainedTokenizerBase, folder: Path, replacement: str | None
) -> None:
    """Compile the chat template, so that its mistakes show before the first request.

    Args:
      replacement: used instead of the model's own template.

    Raises:
      WeightsBroken: the model's own template has a syntax error.
      InvalidConfig: the replacement has one.
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
    # Any other error is about this empty message; requests with such messages get a
    # 400.
    except Exception:
        return
