"""Reads the prompts of config_sentence_transformers.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Texts that are put before other texts, by name.

    Args:
      default: the name of the prompt for texts without a kind.
    """

    texts: Mapping[str, str]
    default: str | None = None


def read_prompts(config: Fields) -> Prompts:
    """Read a file's prompts.

    Raises:
      WeightsBroken: a prompt is not text, or the default prompt is missing.
    """
    default = config.text("default_prompt_name")
    fields = config.object("prompts")
    names = sorted(fields.names()) if fields is not None else []
    if default is not None and default not in names:
        raise config.make_error(f"has no prompt {default!r}, its default")
    read = {name: fields.text(name) for name in names} if fields is not None else {}
    # A name with null as its text is a placeholder, and has no effect.
    texts = {name: text for name, text in read.items() if text is not None}
    return Prompts(texts=texts, default=default if default in texts else None)
