"""Decodes values of any type that may be megabytes long, piece by piece.

A list is split into its items, and its bound is checked before that. The lists of an object
stay bytes when the object is decoded, and then each of them is split in turn.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter
from .errors import explain
from .shapes import Shape, find_long_fields, find_shape
from .values import (
    PIECE_BYTES,
    begins_with,
    decode_field,
    find_decoder,
    has_value,
    split_list,
)

# The value of a field that the client did not send.
_NOTHING: Final = msgspec.Raw()

# Four times a grammar's limit (grammar/limits.py): JSON may be indented.
MAX_STRUCTURE_BYTES: Final = 1_048_576


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
    if len(memoryview(raw)) > MAX_STRUCTURE_BYTES:
        raise InvalidParameter(name, f"at most {MAX_STRUCTURE_BYTES} bytes are allowed")
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
