"""What a chat template reads and shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

# The content of a message that calls tools: some text, the empty text, or None.
CallContent = Literal["text", "empty", "none"]
CALL_CONTENTS: Final[tuple[CallContent, ...]] = get_args(CallContent)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateForm:
    """What a template reads.

    Args:
      takes_strings: content that is one string.
      takes_parts: content that is a list of parts.
      image_token: what stands for an image where the template has no word for it; None
        for a model that sees none.
      shows_tools: the model sees the tools that it may call.
      shows_calls_beside: contents of a message beside which its calls are shown.
      shows_all_calls: not only the first call of a message is shown.
      takes_arguments_as_text: a call's arguments are JSON in a string; else the object.
      shows_results: messages of the role `tool` are shown.
    """

    takes_strings: bool = True
    takes_parts: bool = False
    image_token: str | None = None
    shows_tools: bool = True
    shows_calls_beside: frozenset[CallContent] = frozenset(CALL_CONTENTS)
    shows_all_calls: bool = True
    takes_arguments_as_text: bool = False
    shows_results: bool = True


def text_part(text: str) -> dict[str, str]:
    """Make a part of a content that is a list."""
    return {"type": "text", "text": text}
