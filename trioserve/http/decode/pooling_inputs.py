"""Texts, token ids and chats, decoded without holding everyone up; see lazy_fields.py.

Each function is a decoder of one field: given its name, its bytes and how many token
ids are too many, which here is for the renderer to say. What they leave is always a
tuple with an item for each input, however it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from .lazy_fields import PIECE_BYTES, begins_with, decode_field, decode_ids, split_list
from .messages import ContentPart, Message, Messages, check_messages
from .pooling_requests import MAX_DOCUMENTS, MAX_INPUTS, Item, TextInputs, TextPart
from .requests import TokenId

_NULL: Final = b"null"
_LIST_BEGIN: Final = re.compile(rb"\[[ \t\r\n]*")
_LISTS_BEGIN: Final = re.compile(rb"\[[ \t\r\n]*\[[ \t\r\n]*")


def decode_inputs(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[Item, ...] | None:
    """Decode a text, token ids or a chat, or a list of either.

    Raises:
      InvalidParameter: it is none of these, there are too many or none at all.
      NotSupported: a chat holds more than text.
    """
    if begins_with(raw, b'"'):
        return (decode_field(name, raw, str),)
    match _peek(raw):
        case b'"':
            return _decode_list(name, raw, str, MAX_INPUTS)
        case b"[":
            return _decode_lists(name, raw, max_tokens)
        case b"{":
            return (_decode_chat(name, raw),)
        case digit if digit.isdigit() or digit == b"-":
            return (decode_ids(name, raw, max_tokens),)
    # Null, or something wrong, which the decoder has words for.
    decoded = decode_field(name, raw, TextInputs | None)
    assert decoded is None, "what begins otherwise is no input"
    return None


def decode_chats(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[tuple[Message, ...], ...] | None:
    """Decode a chat or a list of chats; raises as decode_inputs does."""
    if _peek(raw) == b"[":
        return _decode_chats(name, raw)
    return None if _is_null(raw) else (_decode_chat(name, raw),)


def decode_score_texts(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[str, ...] | None:
    """Decode a text or several, each plain or wrapped; raises as decode_inputs does."""
    if _is_null(raw):
        return None
    if not begins_with(raw, b"["):
        item: str | TextPart = decode_field(name, raw, str | TextPart)
        return (_unwrap(name, item),)
    return _unwrap_all(name, _decode_list(name, raw, str | TextPart, MAX_DOCUMENTS))


def decode_query(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[str, ...]:
    """Decode one text, plain or wrapped; raises as decode_inputs does."""
    return (_unwrap(name, decode_field(name, raw, str | TextPart)),)


def decode_documents(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[str, ...]:
    """Decode what decode_score_texts does, and no null."""
    texts = decode_score_texts(name, raw, max_tokens)
    if texts is None:
        raise InvalidParameter(name, "is required")
    return texts


def decode_texts(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[str, ...] | None:
    """Decode a list of texts; raises as decode_inputs does."""
    return None if _is_null(raw) else _decode_list(name, raw, str, MAX_INPUTS)


def decode_wrapped(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[str, ...] | None:
    """Decode a list of wrapped texts; raises as decode_inputs does."""
    if _is_null(raw):
        return None
    return _unwrap_all(name, _decode_list(name, raw, TextPart, MAX_INPUTS))


def _peek(raw: msgspec.Raw, pattern: re.Pattern[bytes] = _LIST_BEGIN) -> bytes:
    """Tell how a list's first item begins; empty bytes if it is no list."""
    view = memoryview(raw)
    begin = pattern.match(view)
    return bytes(view[begin.end() : begin.end() + 1]) if begin else b""


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[: len(_NULL)]) == _NULL


def _decode_list(
    name: str, raw: msgspec.Raw, kind: Any, max_items: int
) -> tuple[Any, ...]:
    """Decode a list: short ones at once, others item by item."""
    if len(memoryview(raw)) <= PIECE_BYTES:
        bounds = Meta(min_length=1, max_length=max_items)
        items: tuple[Any, ...] = decode_field(
            name, raw, Annotated[tuple[kind, ...], bounds]
        )
        return items
    return tuple(
        decode_field(f"{name}[{index}]", item, kind)
        for index, item in enumerate(_split(name, raw, max_items))
    )


def _decode_lists(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[Item, ...]:
    """Decode lists of token ids, or chats: what the first is, all have to be."""
    if _peek(raw, _LISTS_BEGIN) == b"{":
        return _decode_chats(name, raw)
    if len(memoryview(raw)) <= PIECE_BYTES:
        lists = _decode_list(name, raw, tuple[TokenId, ...], MAX_INPUTS)
    else:
        lists = tuple(
            decode_ids(f"{name}[{index}]", item, max_tokens)
            for index, item in enumerate(_split(name, raw, MAX_INPUTS))
        )
    for index, ids in enumerate(lists):
        if not ids:
            raise InvalidParameter(f"{name}[{index}]", "must not be empty")
    return lists


def _decode_chats(name: str, raw: msgspec.Raw) -> tuple[tuple[Message, ...], ...]:
    chats = _decode_list(name, raw, Messages, MAX_INPUTS)
    for index, messages in enumerate(chats):
        _check_chat(f"{name}[{index}]", messages)
    return chats


def _split(name: str, raw: msgspec.Raw, max_items: int) -> list[msgspec.Raw]:
    items = split_list(name, raw, max_items)
    if not items:
        raise InvalidParameter(name, "must not be empty")
    return items


def _decode_chat(name: str, raw: msgspec.Raw) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = decode_field(name, raw, Messages)
    _check_chat(name, messages)
    return messages


def _check_chat(name: str, messages: tuple[Message, ...]) -> None:
    check_messages(messages, name)
    for index, message in enumerate(messages):
        if isinstance(message.content, tuple):
            _check_parts(f"{name}[{index}].content", message.content)


def _unwrap_all(name: str, items: Sequence[str | TextPart]) -> tuple[str, ...]:
    return tuple(
        item if isinstance(item, str) else _unwrap(f"{name}[{index}]", item)
        for index, item in enumerate(items)
    )


def _unwrap(name: str, item: str | TextPart) -> str:
    if isinstance(item, str):
        return item
    if (item.text is None) == (item.content is None):
        raise InvalidParameter(name, "must have either text or content")
    if item.text is not None:
        return item.text
    content = item.content or ()
    _check_parts(f"{name}.content", content)
    return "".join(part.text or "" for part in content)


def _check_parts(name: str, parts: tuple[ContentPart, ...]) -> None:
    for index, part in enumerate(parts):
        if part.type != "text":
            raise NotSupported(f"{name}[{index}].type", "text is what can be pooled")
        if part.text is None:
            raise InvalidParameter(f"{name}[{index}].text", "is required")
