"""Decodes fields that may be megabytes long, without blocking other threads for long.

A call of the JSON decoder holds the GIL, whichever thread it runs in. So fields that are
too long are refused before they are decoded, strings of bytes are not decoded at all, and
the rest is decoded in pieces, so that other threads can run between them. A list is split
into its items, and the lists of an object stay bytes when the object is decoded; then each
of them is split in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec

from ...errors import ContextLengthExceeded, InvalidParameter
from ...types.nesting import check_nesting
from .counting import check_size
from .errors import explain
from .fields import TokenId
from .shapes import Shape, find_long_fields, find_shape

# The size of a piece. It takes half a millisecond, for text and for token ids.
PIECE_BYTES: Final = 65_536

# The value of an item, or of a field, that the client did not send.
_NOTHING: Final = msgspec.Raw()

# They take one or two milliseconds. In schemas, each has twenty bytes or more.
_MAX_FREE_CONTAINERS: Final = 16_384

# Four times a grammar's limit (grammar/limits.py): JSON may be indented.
MAX_STRUCTURE_BYTES: Final = 1_048_576


# The decoder of a union takes ten microseconds to make.
@cache
def find_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type."""
    return msgspec.json.Decoder(kind)


def decode_field(name: str, raw: msgspec.Raw | bytes, kind: Any) -> Any:
    """Decode one field.

    Raises:
      InvalidParameter: the field has another type; names the field.
    """
    try:
        return find_decoder(kind).decode(raw)
    except (ValueError, RecursionError) as error:
        raise explain(error, kind, name) from None


def has_value(raw: msgspec.Raw | None) -> bool:
    """Return whether a field was sent, and is not null."""
    return raw is not None and bytes(memoryview(raw)[:4]) not in (b"", b"null")


def begins_with(raw: msgspec.Raw, character: bytes) -> bool:
    """Return whether a value begins with a character, which shows its type."""
    return bytes(memoryview(raw)[:1]) == character


def read_string(name: str, raw: msgspec.Raw) -> memoryview:
    """Return the bytes between the quotes of a string, without a copy.

    Raises:
      InvalidParameter: the value is not a string.
    """
    if not begins_with(raw, b'"'):
        raise InvalidParameter(name, "must be a string")
    # Escapes are rare in such strings, but some encoders write / as \/.
    if any(b"\\" in piece for piece in _copy_pieces(memoryview(raw))):
        text: str = decode_field(name, raw, str)
        return memoryview(text.encode())
    return memoryview(raw)[1:-1]


def split_list(name: str, raw: msgspec.Raw, max_items: int) -> list[msgspec.Raw]:
    """Split a list into its items. A list that is too long is refused before that.

    The decoder checks the length of a list only after it has made all items, which can
    take seconds and gigabytes. But it stops behind the last field of a struct. So the list
    is decoded as a struct with `max_items` fields.

    Raises:
      InvalidParameter: the value is not a list, or has more items.
    """
    items = msgspec.structs.astuple(
        decode_field(name, raw, _make_items_type(max_items))
    )
    # Every JSON value has bytes, so an empty field was not sent.
    return list(items[: (*items, _NOTHING).index(_NOTHING)])


@cache
def _make_items_type(max_items: int) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Items",
        [(f"item_{index}", msgspec.Raw, _NOTHING) for index in range(max_items)],
        array_like=True,
        forbid_unknown_fields=True,
        frozen=True,
    )


def decode_ids(
    name: str, raw: msgspec.Raw, max_tokens: int, *, piece_bytes: int = PIECE_BYTES
) -> tuple[int, ...]:
    """Decode a list of token ids, piece by piece.

    Raises:
      InvalidParameter: the value is not a list of token ids.
      ContextLengthExceeded: there are `max_tokens` ids or more.
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


def decode_free_form(name: str, raw: msgspec.Raw, kind: Any, max_bytes: int) -> Any:
    """Decode a field that may contain any JSON.

    Raises:
      InvalidParameter: the value has another type, or is too large or too deep.
    """
    _check_length(name, raw, max_bytes)
    check_size(
        name, raw, max_containers=_MAX_FREE_CONTAINERS, few_bytes=_MAX_FREE_CONTAINERS
    )
    value = decode_field(name, raw, kind)
    check_nesting(name, value)
    return value


def _check_length(name: str, raw: msgspec.Raw, max_bytes: int) -> None:
    if len(memoryview(raw)) > max_bytes:
        raise InvalidParameter(name, f"at most {max_bytes} bytes are allowed")


def _copy_pieces(view: memoryview) -> Iterator[bytes]:
    """Copy in small pieces, because a copy of megabytes would block other threads."""
    for begin in range(0, len(view), PIECE_BYTES):
        yield bytes(view[begin : begin + PIECE_BYTES])


def _cut(view: memoryview, piece_bytes: int) -> Iterator[bytes]:
    """Cut at commas. The decoder finds pieces that are not lists of token ids."""
    begin = 0
    while len(view) - begin > piece_bytes:
        piece = bytes(view[begin : begin + piece_bytes])
        end = piece.rfind(b",")
        if end < 0:
            # No token id is so long. The decoder reports that.
            break
        yield piece[:end]
        begin += end + 1
    yield bytes(view[begin:])


def decode_pieces(name: str, raw: msgspec.Raw | bytes, kind: Any) -> Any:
    """Decode a value; a long one piece by piece.

    Raises:
      InvalidParameter: the value has another type, or a list in it is too long.
    """
    raw = msgspec.Raw(raw)
    if len(memoryview(raw)) > PIECE_BYTES:
        shape = find_shape(kind)
        if shape.item is not None and begins_with(raw, b"["):
            return _decode_list(name, raw, kind, shape)
        if shape.struct is not None and begins_with(raw, b"{"):
            return _decode_struct(name, raw, shape.struct)
    return decode_field(name, raw, kind)


def decode_copy(kind: Any, name: str, raw: msgspec.Raw, max_tokens: int) -> Any:
    """Decode a form of answers, which may have parts that stay bytes.

    Raises:
      InvalidParameter: the value has another type, or is too long.
    """
    _check_length(name, raw, MAX_STRUCTURE_BYTES)
    if not has_value(raw):
        return None
    # From a copy, because the parts that stay bytes would hold the whole body.
    return decode_pieces(name, bytes(raw), kind)


def make_shell(
    struct: type[msgspec.Struct], raw_fields: tuple[str, ...]
) -> type[msgspec.Struct]:
    """Make a struct with the same fields, some of which stay bytes."""
    required = {f.name for f in msgspec.structs.fields(struct) if f.required}
    return msgspec.defstruct(
        f"{struct.__name__}Shell",
        [
            (name, msgspec.Raw, msgspec.NODEFAULT if name in required else _NOTHING)
            for name in raw_fields
        ],
        bases=(struct,),
        # It is checked once, when it is complete.
        namespace={"__post_init__": lambda self: None},
        frozen=True,
        kw_only=True,
    )


def _decode_list(
    name: str, raw: msgspec.Raw, kind: Any, shape: Shape
) -> tuple[Any, ...]:
    assert shape.max_items is not None, "every list of a request has a bound"
    items = split_list(name, raw, shape.max_items)
    if not items:
        empty: tuple[Any, ...] = decode_field(name, b"[]", kind)
        return empty
    decode = find_decoder(shape.item).decode
    decoded = []
    for index, item in enumerate(items):
        if len(memoryview(item)) > PIECE_BYTES:
            decoded.append(decode_pieces(f"{name}[{index}]", item, shape.item))
            continue
        try:
            decoded.append(decode(item))
        except (ValueError, RecursionError) as error:
            raise explain(error, shape.item, f"{name}[{index}]") from None
    return tuple(decoded)


def _decode_struct(name: str, raw: msgspec.Raw, struct: type[msgspec.Struct]) -> Any:
    long_fields = find_long_fields(struct)
    shell = decode_field(name, raw, _find_shell(struct))
    fields = {each: getattr(shell, each) for each in struct.__struct_fields__}
    for each, kind in long_fields.items():
        if fields[each]:
            fields[each] = decode_pieces(f"{name}.{each}", fields[each], kind)
        else:
            del fields[each]
    return struct(**fields)


@cache
def _find_shell(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    return make_shell(struct, tuple(find_long_fields(struct)))
