"""The structs of a conversation, as clients send it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..decode.fields import Name

# No client was seen to send more.
MAX_MESSAGES: Final = 16_384
# Of one message. decode/counting.py bounds the parts and calls of all messages together.
MAX_PARTS: Final = 16_384
ToolType = Literal["function"]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a message's content: a text, an image or a tensor of embeddings.

    Fields that may be megabytes long stay bytes of the body, which costs nothing.
    """

    type: str
    text: str | None = None
    image_url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    prompt_embeds: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The source of an image.

    Args:
      detail: `low` is refused, because the model always sees the full image, as its
        processor prepares it.
    """

    url: msgspec.Raw
    detail: str | None = None

    @property
    def wants_detail(self) -> bool:
        return self.detail in (None, "auto", "high")


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The function of a call; `arguments` is JSON."""

    name: Name
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the assistant made earlier in the conversation."""

    function: FunctionCall
    id: str | None = None
    type: ToolType = "function"


class Unread(msgspec.Struct, frozen=True, gc=False):
    """An object that is always refused, so its fields are never decoded."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn of a conversation.

    Args:
      role: one of OpenAI's, or another one that the chat template names.
      name: the speaker, for templates that show it.
    """

    role: Name
    content: (
        str | Annotated[tuple[ContentPart, ...], Meta(max_length=MAX_PARTS)] | None
    ) = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], Meta(max_length=MAX_PARTS)] | None = (
        None
    )
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Unread | None = None
    function_call: Unread | None = None

    @property
    def text(self) -> str:
        """The text of the content; its parts are joined as for the template."""
        if not isinstance(self.content, tuple):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.text is not None)


Messages = Annotated[tuple[Message, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
