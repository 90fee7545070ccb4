"""Decodes values of any type that may be megabytes long, piece by piece.

A list is split into its items, and its bound is checked before that. The lists of an object
stay bytes when the object is decoded, and then each of them is split in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from .errors import explain
from .lazy_fields import (
    PIECE_BYTES,
    begins_with,
    decode_field,
    find_decoder,
    split_list,
)

# The value of a field that the client did not send.
_NOTHING: Final = msgspec.Raw()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a type can hold that takes long to decode.

    Attributes:
      item: the type of the items, if it can be a list.
      max_items: the bound on their number.
      struct: the type of the object, if it can be a struct.
      is_mapping: it can be an object of any fields.
    """

    item: Any = None
    max_items: int | None = None
    struct: type[msgspec.Struct] | None = None
    is_mapping: bool = False

    @property
    def is_long(self) -> bool:
        """Whether a value has lists or mappings in it."""
        if self.item is not None or self.is_mapping:
            return True
        return self.struct is not None and bool(find_long_fields(self.struct))


@cache
def find_shape(kind: Any) -> Shape:
    """Return what a type can hold. Of each kind of value it has one alternative at most."""
    found: dict[str, Any] = {}
    for alternative, bound in _list_alternatives(kind, None):
        origin = get_origin(alternative) or alternative
        if origin is tuple:
            found |= {"item": get_args(alternative)[0], "max_items": bound}
        elif origin is dict:
            found["is_mapping"] = True
        elif isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            found["struct"] = origin
    return Shape(**found)


@cache
def find_long_fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of the fields that have lists or mappings, by their names."""
    types = get_type_hints(struct, include_extras=True)
    return {
        name: types[name]
        for name in struct.__struct_fields__
        if find_shape(types[name]).is_long
    }


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
            raise explain(error, f"{name}[{index}]") from None
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


def _list_alternatives(
    kind: Any, bound: int | None
) -> Iterator[tuple[Any, int | None]]:
    """Yield the members of a union, with the bounds on their lengths."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *notes = get_args(kind)
        bounds = [n.max_length for n in notes if isinstance(n, msgspec.Meta)]
        yield from _list_alternatives(inner, next(iter(bounds), bound))
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _list_alternatives(each, bound)
    else:
        yield kind, bound
