"""The texts that are pooled, and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...types.pooling import LongText
from ..text.chat import ChatMessage, count_characters
from ..text.template import ChatOptions

Side = Literal["left", "right"]
Kind = Literal["query", "document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A conversation; the text that its template makes of it is pooled."""

    messages: Sequence[ChatMessage | Mapping[str, object]]
    chat: ChatOptions = field(default_factory=ChatOptions)


# Text, token ids, or a conversation.
TextInput = str | tuple[int, ...] | ChatInput


def count_text(texts: Sequence[TextInput]) -> int:
    """Estimate the size of texts, in characters or ids."""
    return sum(
        count_characters(text.messages) if isinstance(text, ChatInput) else len(text)
        for text in texts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Options of turning a text into model inputs.

    Args:
      add_special_tokens: add the tokenizer's special tokens. None adds them to texts
        and pairs, but not to conversations, whose templates write them. They are never
        added to token ids.
      truncate_to: the most tokens that are kept, special ones included.
      truncation_side: the side on which tokens are dropped.
      long_text: the treatment of texts that are longer than the model.
      kind: query or document, for models with different prompts, lengths or fillers for
        the two.
      prompt_name: the name of the model's prompt that is put before the text.
      max_query_tokens, max_document_tokens: a text of this kind, or this part of a
        pair, is cut to so many tokens before anything is added; 0 does not cut it.
    """

    add_special_tokens: bool | None = None
    truncate_to: int | None = None
    truncation_side: Side = "right"
    long_text: LongText = "refuse"
    kind: Kind | None = None
    prompt_name: str | None = None
    max_query_tokens: int = 0
    max_document_tokens: int = 0
