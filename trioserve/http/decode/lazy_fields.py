"""Fields that may be megabytes long, decoded without holding everyone up.

A call of the decoder holds the GIL, in whichever thread it runs: what can be refused by
its length is never decoded, what can be left as bytes is, and the rest is decoded in
pieces, between which others have their turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, cast

import msgspec

from ...errors import ContextLengthExceeded, InvalidParameter
from .errors import explain
from .requests import MAX_PROMPTS, CompletionPrompt, PromptItem, TokenId

# Decoded at once: half a millisecond, be it text or token ids.
PIECE_BYTES: Final = 65_536

_NO_ITEM: Final = msgspec.Raw()


def decode_field(name: str, raw: msgspec.Raw | bytes, kind: Any) -> Any:
    """Decode one field, with an error that names it.

    Raises:
      InvalidParameter
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise explain(error, name) from None


def begins_with(raw: msgspec.Raw, character: bytes) -> bool:
    """Tell what kind of value it is; the decoder leaves no space before it."""
    return bytes(memoryview(raw)[:1]) == character


def read_string(name: str, raw: msgspec.Raw) -> memoryview:
    """Return the bytes between a string's quotes, without a copy.

    Raises:
      InvalidParameter: it is something else.
    """
    if not begins_with(raw, b'"'):
        raise InvalidParameter(name, "must be a string")
    # An escape is rare in what is read this way, but some write / as \/.
    if any(b"\\" in piece for piece in _copy_pieces(memoryview(raw))):
        text: str = decode_field(name, raw, str)
        return memoryview(text.encode())
    return memoryview(raw)[1:-1]


def decode_prompt(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> CompletionPrompt | None:
    """Decode texts, token ids, or lists of them.

    Args:
      max_tokens: as many ids are too many for any model.

    Raises:
      InvalidParameter: it is none of these.
      ContextLengthExceeded: there are too many ids.
    """
    if len(memoryview(raw)) <= PIECE_BYTES or not begins_with(raw, b"["):
        return _check_types(name, decode_field(name, raw, CompletionPrompt | None))
    if bytes(memoryview(raw)[1:PIECE_BYTES]).lstrip()[:1].isdigit():
        return decode_ids(name, raw, max_tokens)
    items = split_list(name, raw, MAX_PROMPTS)
    prompts = tuple(
        (
            decode_ids(f"{name}[{index}]", item, max_tokens)
            if begins_with(item, b"[")
            else decode_field(f"{name}[{index}]", item, PromptItem)
        )
        for index, item in enumerate(items)
    )
    return _check_types(name, prompts)


def decode_embeds_list(
    name: str, raw: msgspec.Raw, max_tokens: int
) -> tuple[memoryview, ...] | None:
    """Find one string, or several in a list.

    Raises:
      InvalidParameter: it is something else, or an empty list.
    """
    if begins_with(raw, b'"'):
        return (read_string(name, raw),)
    if not begins_with(raw, b"["):
        return cast(None, decode_field(name, raw, list[msgspec.Raw] | None))
    items = split_list(name, raw, MAX_PROMPTS)
    if not items:
        raise InvalidParameter(name, f"takes 1 to {MAX_PROMPTS} tensors")
    return tuple(read_string(f"{name}[{i}]", item) for i, item in enumerate(items))


def split_list(name: str, raw: msgspec.Raw, max_items: int) -> list[msgspec.Raw]:
    """Take a list apart, and nothing of one that is too long.

    The decoder makes an object of each item before it looks how many there are: of
    "", sixteen million times, gigabytes in as many seconds. A struct has as many fields
    as it has, and the decoder stops behind the last.

    Raises:
      InvalidParameter: it is something else, or has more items.
    """
    items = decode_field(name, raw, _make_items_type(max_items))
    # No value has no bytes.
    return [item for item in msgspec.structs.astuple(items) if len(memoryview(item))]


@cache
def _make_items_type(max_items: int) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Items",
        [(f"item_{index}", msgspec.Raw, _NO_ITEM) for index in range(max_items)],
        array_like=True,
        forbid_unknown_fields=True,
        frozen=True,
    )


def decode_ids(
    name: str, raw: msgspec.Raw, max_tokens: int, *, piece_bytes: int = PIECE_BYTES
) -> tuple[int, ...]:
    """Decode a list of token ids, piece by piece.

    Raises:
      InvalidParameter: it is something else.
      ContextLengthExceeded: there are `max_tokens` or more.
    """
    if not begins_with(raw, b"["):
        decode_field(name, raw, tuple[TokenId, ...])
    view = memoryview(raw)[1:-1]
    num_commas = sum(piece.count(b",") for piece in _copy_pieces(view))
    if num_commas + 1 >= max_tokens:
        raise ContextLengthExceeded(
            num_tokens=num_commas + 1, limit=max_tokens, param=name
        )
    ids: list[int] = []
    for piece in _cut(view, piece_bytes):
        ids += decode_field(name, b"[%b]" % piece, list[TokenId])
    return tuple(ids)


def _copy_pieces(view: memoryview) -> Iterator[bytes]:
    """Copy a little at a time: a copy of megabytes would be what is to be avoided."""
    for begin in range(0, len(view), PIECE_BYTES):
        yield bytes(view[begin : begin + PIECE_BYTES])


def _cut(view: memoryview, piece_bytes: int) -> Iterator[bytes]:
    """Cut at commas; what lies between them is no list, or it is no token id."""
    begin = 0
    while len(view) - begin > piece_bytes:
        piece = bytes(view[begin : begin + piece_bytes])
        end = piece.rfind(b",")
        if end < 0:
            # No token id is so long, and the decoder will say so.
            break
        yield piece[:end]
        begin += end + 1
    yield bytes(view[begin:])


def _check_types(name: str, prompt: Any) -> CompletionPrompt | None:
    """Refuse mixtures, which no type of the decoder excludes."""
    if isinstance(prompt, tuple):
        types = set(map(type, prompt))
        if len(types) > 1:
            raise InvalidParameter(
                name, "must not mix strings, token ids and lists of token ids"
            )
        if types != {int} and len(prompt) > MAX_PROMPTS:
            raise InvalidParameter(name, f"at most {MAX_PROMPTS} prompts are taken")
    return cast(CompletionPrompt | None, prompt)
