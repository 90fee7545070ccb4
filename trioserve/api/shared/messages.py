"""The structs of a conversation, as clients send it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ..decode.fields import Name

# No client was seen to send more.
MAX_MESSAGES: Final = 16_384
# Of one message. decode/counting.py bounds the parts and calls of all messages together.
MAX_PARTS: Final = 16_384
ToolType = Literal["function"]

PART_TYPES: Final = ("text", "image_url", "prompt_embeds")


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


def check_messages(messages: tuple[Message, ...], param: str = "messages") -> None:
    """Refuse messages without content, and content that the server does not support.

    Args:
      param: the field that contains the messages.

    Raises:
      InvalidParameter: a message, or a part of one, is empty.
      NotSupported: a message contains audio, video, files, a refusal, or calls in the
        old form.
    """
    for index, message in enumerate(messages):
        path = f"{param}[{index}]"
        if message.function_call is not None:
            raise NotSupported(f"{path}.function_call")
        if message.audio is not None:
            raise NotSupported(f"{path}.audio")
        if message.refusal:
            raise NotSupported(f"{path}.refusal", "send it as content")
        # The assistant's content may be null: it may have called tools only.
        if message.content is None and message.role != "assistant":
            raise InvalidParameter(f"{path}.content", "is required")
        if isinstance(message.content, tuple):
            _check_parts(f"{path}.content", message.content)


def _check_parts(path: str, parts: tuple[ContentPart, ...]) -> None:
    for index, part in enumerate(parts):
        if part.type not in PART_TYPES:
            raise NotSupported(
                f"{path}[{index}].type", list_choices(PART_TYPES, part.type)
            )
        # Each type of part has its content in the field of the same name.
        if getattr(part, part.type) in (None, msgspec.Raw()):
            raise InvalidParameter(f"{path}[{index}].{part.type}", "is required")


def check_continuation(adds_prompt: bool | None, continues: bool | None) -> None:
    """Refuse a request that both opens a new turn and continues the last one.

    Raises:
      InvalidParameter: both are requested.
    """
    if adds_prompt and continues:
        raise InvalidParameter(
            "continue_final_message", "cannot be combined with add_generation_prompt"
        )


def opens_turn(adds_prompt: bool | None, continues: bool | None) -> bool:
    """Return whether the assistant's turn is opened; not where a message goes on."""
    return not continues if adds_prompt is None else adds_prompt
