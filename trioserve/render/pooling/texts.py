"""What is pooled, and how it is brought to the model: values that cross the room's door."""

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
    """A conversation that is pooled as the text that its template makes of it."""

    messages: Sequence[ChatMessage | Mapping[str, object]]
    chat: ChatOptions = field(default_factory=ChatOptions)


# Text, token ids, or a conversation.
TextInput = str | tuple[int, ...] | ChatInput


def count_text(texts: Sequence[TextInput]) -> int:
    """Return how much text there is, about, in characters or ids."""
    return sum(
        count_characters(text.messages) if isinstance(text, ChatInput) else len(text)
        for text in texts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How a text becomes what the model reads.

    Args:
      add_special_tokens: the tokenizer's own. None adds them to texts and pairs, and not
        to conversations, whose templates write them themselves. Ids are taken as they
        are.
      truncate_to: tokens that are kept at most, special ones included.
      truncation_side: where tokens are dropped.
      long_text: what is done with what is longer than the model.
      kind: the side of a search that it stands on, for models that tell the two apart by
        prompts, lengths or fillers.
      prompt_name: of the model's prompts the one that is put before it.
      max_query_tokens, max_document_tokens: a text of this kind, or of a pair, is cut to
        so many tokens before anything is put around it; 0 does not cut it.
    """

    add_special_tokens: bool | None = None
    truncate_to: int | None = None
    truncation_side: Side = "right"
    long_text: LongText = "refuse"
    kind: Kind | None = None
    prompt_name: str | None = None
    max_query_tokens: int = 0
    max_document_tokens: int = 0
