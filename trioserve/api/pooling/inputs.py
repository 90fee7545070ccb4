"""Decodes texts, token ids and chats that are pooled, in pieces; see decode/values.py.

Each function decodes one field, given its name, its bytes and a number of token ids that
is too large. It always returns a tuple with one item for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from ..decode.fields import TokenId
from ..decode.values import (
    PIECE_BYTES,
    begins_with,
    decode_field,
    decode_ids,
    decode_pieces,
    split_list,
)
from ..shared.message_mappings import check_messages
from ..shared.messages import ContentPart, Message, Messages
from .requests import MAX_DOCUMENTS, MAX_INPUTS, Item, TextInputs, TextPart

_NULL: Final = b"null"
_LIST_BEGIN: Final = re.compile(rb"\[[ \t\r\n]*")
_LISTS_BEGIN: Final = re.compile(rb"\[[ \t\r\n]*\[[ \t\r\n]*")


def decode_inputs(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[Item, ...] | None:
    """Decode a text, token ids or a chat, or a list of either.

    Raises:
      InvalidParameter: the value is none of these, or has no items or too many.
      NotSupported: a chat contains more than text.
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
    # Null, or a wrong value. The decoder has the message for that.
    decoded = decode_field(name, raw, TextInputs | None)
    assert decoded is None, "all other beginnings are refused"
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
    """Decode one text or several, plain or wrapped; raises as decode_inputs does."""
    if _is_null(raw):
        return None
    if not begins_with(raw, b"["):
        item: str | TextPart = decode_pieces(name, raw, str | TextPart)
        return (_unwrap(name, item),)
    return _unwrap_all(name, _decode_list(name, raw, str | TextPart, MAX_DOCUMENTS))


def decode_query(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[str, ...]:
    """Decode one text, plain or wrapped; raises as decode_inputs does."""
    return (_unwrap(name, decode_pieces(name, raw, str | TextPart)),)


def decode_documents(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[str, ...]:
    """Decode as decode_score_texts does, but refuse null."""
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
    """Return the first byte of a list's first item; empty if it is not a list."""
    view = memoryview(raw)
    begin = pattern.match(view)
    return bytes(view[begin.end() : begin.end() + 1]) if begin else b""


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[: len(_NULL)]) == _NULL


def _decode_list(
    name: str, raw: msgspec.Raw, kind: Any, max_items: int
) -> tuple[Any, ...]:
    """Decode a list: a short one at once, a long one item by item."""
    if len(memoryview(raw)) <= PIECE_BYTES:
        bounds = Meta(min_length=1, max_length=max_items)
        items: tuple[Any, ...] = decode_field(
            name, raw, Annotated[tuple[kind, ...], bounds]
        )
        return items
    return tuple(
        decode_pieces(f"{name}[{index}]", item, kind)
        for index, item in enumerate(_split(name, raw, max_items))
    )


def _decode_lists(name: str, raw: msgspec.Raw, max_tokens: int) -> tuple[Item, ...]:
    """Decode lists of token ids, or chats. All items must be of the first one's kind."""
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
    messages: tuple[Message, ...] = decode_pieces(name, raw, Messages)
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
            raise NotSupported(f"{name}[{index}].type", "only text can be pooled")
        if part.text is None:
            raise InvalidParameter(f"{name}[{index}].text", "is required")
