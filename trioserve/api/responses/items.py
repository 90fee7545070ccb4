"""The items of a conversation, as clients of the Responses API send them.

A message, a call of a function, its result, and the reasoning before an answer are items
of one list. Items also have a stored form: the JSON in which GET .../input_items shows
them, and from which they are decoded again if a later request continues the response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported, list_choices
from ..decode.fields import Name
from ..decode.values import has_value
from ..shared.messages import MAX_MESSAGES, MAX_PARTS

_ROLES: Final = ("user", "system", "developer", "assistant")

# Parts of messages and of results of functions.
_PART_TYPES: Final = ("input_text", "output_text", "input_image")

_REASONING_TYPES: Final = ("reasoning_text", "summary_text", "text", "output_text")

MESSAGE: Final = "message"
CALL: Final = "function_call"
RESULT: Final = "function_call_output"
REASONING: Final = "reasoning"
_ITEM_TYPES: Final = (MESSAGE, CALL, RESULT, REASONING)

# The states of items that have not ended.
_CUT: Final = ("in_progress", "incomplete")


class InputPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a content: a text, an image, or a piece of reasoning.

    Args:
      image_url: may be megabytes long, so it stays bytes of the body.
    """

    type: str
    text: str | None = None
    image_url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    detail: str | None = None


Parts = Annotated[tuple[InputPart, ...], Meta(max_length=MAX_PARTS)]
Content = str | Parts


class InputItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One item. Its type decides which of the fields it has.

    Args:
      type: messages may have none.
      status: whether the item is complete; nothing means that it is.
      role, content: of a message. Reasoning has a content, too.
      call_id, name, arguments: of a call; `arguments` is JSON.
      namespace: of a call, if its function stands in one.
      call_id, output: of the result of a call.
      summary: of reasoning.
      encrypted_content: reasoning that only the server that wrote it can read.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: str | None = None
    output: Content | None = None
    summary: Parts | None = None
    encrypted_content: str | None = None

    @property
    def kind(self) -> str | None:
        return MESSAGE if self.type is None and self.role is not None else self.type

    @property
    def is_cut(self) -> bool:
        """True if it ended, or was sent, before it was complete."""
        return self.status in _CUT


InputItems = Annotated[
    tuple[InputItem, ...], Meta(min_length=1, max_length=MAX_MESSAGES)
]


def check_items(items: Iterable[InputItem]) -> None:
    """Refuse items that are not complete, and items that this server does not support.

    Raises:
      InvalidParameter: a field is missing or has a wrong value.
      NotSupported: an item or a part is of another type.
    """
    for index, item in enumerate(items):
        _check_item(item, f"input[{index}]")


def _check_item(item: InputItem, path: str) -> None:
    match item.kind:
        case "message":
            _check_message(item, path)
        case "function_call":
            _require(item, path, "call_id", "name", "arguments")
        case "function_call_output":
            _require(item, path, "call_id", "output")
            _check_parts(item.output, f"{path}.output")
        case "reasoning":
            _check_reasoning(item.content, f"{path}.content")
            _check_reasoning(item.summary, f"{path}.summary")
            if item.encrypted_content and not item.content:
                raise NotSupported(
                    f"{path}.encrypted_content",
                    "only the server that wrote it reads it",
                )
        case None:
            raise InvalidParameter(f"{path}.type", "is required")
        case _:
            raise NotSupported(f"{path}.type", list_choices(_ITEM_TYPES, item.kind))


def _check_reasoning(content: Content | None, path: str) -> None:
    for index, part in enumerate(content if isinstance(content, tuple) else ()):
        if part.type not in _REASONING_TYPES:
            raise NotSupported(
                f"{path}[{index}].type", list_choices(_REASONING_TYPES, part.type)
            )
        if part.text is None:
            raise InvalidParameter(f"{path}[{index}].text", "is required")


def _check_message(item: InputItem, path: str) -> None:
    if item.role not in _ROLES:
        raise InvalidParameter(f"{path}.role", list_choices(_ROLES, item.role))
    _require(item, path, "content")
    _check_parts(item.content, f"{path}.content")


def _require(item: InputItem, path: str, *names: str) -> None:
    for name in names:
        if getattr(item, name) is None:
            raise InvalidParameter(f"{path}.{name}", "is required")


def _check_parts(content: Content | None, path: str) -> None:
    if not isinstance(content, tuple):
        return
    for index, part in enumerate(content):
        if part.type not in _PART_TYPES:
            raise NotSupported(
                f"{path}[{index}].type", list_choices(_PART_TYPES, part.type)
            )
        if part.type != "input_image":
            if part.text is None:
                raise InvalidParameter(f"{path}[{index}].text", "is required")
            continue
        # An image may be a file that was uploaded before; then it has no URL.
        if not has_value(part.image_url):
            raise InvalidParameter(f"{path}[{index}].image_url", "is required")
        if part.detail == "low":
            raise NotSupported(
                f"{path}[{index}].detail",
                "images are always used in full detail; send auto",
            )


def encode_items(items: Iterable[InputItem], make_id: Callable[[str], str]) -> bytes:
    """Return the stored form of items: a JSON array.

    Args:
      make_id: returns a new id for an item of a type, for items that have none.
    """
    return msgspec.json.encode([_to_json(item, make_id) for item in items])


def decode_items(stored: bytes) -> tuple[InputItem, ...]:
    """Return items from their stored form, or from the output of a response."""
    return msgspec.json.decode(stored, type=tuple[InputItem, ...])


def _to_json(item: InputItem, make_id: Callable[[str], str]) -> dict[str, Any]:
    kind = item.kind or MESSAGE
    fields: dict[str, Any] = {"id": item.id or make_id(kind), "type": kind}
    match kind:
        case "message":
            kind = "output_text" if item.role == "assistant" else "input_text"
            content = _list_parts(item.content or "", kind)
            fields |= {"role": item.role, "content": content}
        case "function_call":
            fields |= {"name": item.name, "arguments": item.arguments}
            if item.namespace is not None:
                fields["namespace"] = item.namespace
        case "function_call_output":
            fields["output"] = item.output
            if isinstance(item.output, tuple):
                fields["output"] = list(map(_to_part, item.output))
        case "reasoning":
            fields["summary"] = list(map(_to_part, item.summary or ()))
            if item.content:
                fields["content"] = _list_parts(item.content, "reasoning_text")
    if item.call_id is not None:
        fields["call_id"] = item.call_id
    return fields | {"status": item.status if item.is_cut else "completed"}


def _list_parts(content: Content, text_type: str) -> list[dict[str, Any]]:
    """Return a content as parts.

    Args:
      text_type: the type of the part that a plain string becomes.
    """
    if isinstance(content, str):
        content = (InputPart(type=text_type, text=content),)
    return list(map(_to_part, content))


def _to_part(part: InputPart) -> dict[str, Any]:
    if part.type == "input_image":
        return {
            "type": part.type,
            "image_url": part.image_url,
            "detail": part.detail or "auto",
        }
    fields: dict[str, Any] = {"type": part.type, "text": part.text}
    if part.type == "output_text":
        fields["annotations"] = []
    return fields
