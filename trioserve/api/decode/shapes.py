"""The values that a type of a field can hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
import re
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

# A step of a path: the name of a field, an item of a list, or a value of a mapping.
_STEP: Final = re.compile(r"\.(\w+)|\[[^]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The values of a type that take long to decode.

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
        """True if a value has lists or mappings in it."""
        if self.item is not None or self.is_mapping:
            return True
        return self.struct is not None and bool(find_long_fields(self.struct))


@cache
def find_shape(kind: Any) -> Shape:
    """Return the alternatives of a type: at most one of each kind of value."""
    found: dict[str, Any] = {}
    for alternative, bound in _list_alternatives(kind):
        if get_origin(alternative) is tuple:
            found |= {"item": get_args(alternative)[0], "max_items": bound}
        elif get_origin(alternative) is dict:
            found["is_mapping"] = True
        elif is_struct(alternative):
            found["struct"] = alternative
    return Shape(**found)


@cache
def find_long_fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of the fields that have lists or mappings, by their names."""
    return {
        name: kind for name, kind in list_fields(struct) if find_shape(kind).is_long
    }


def list_fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """List the fields of a struct with their types."""
    types = get_type_hints(struct, include_extras=True)
    return [(name, types[name]) for name in struct.__struct_fields__]


def list_structs(kind: Any) -> list[type[msgspec.Struct]]:
    """List the structs that a value of a type can be."""
    return [each for each, _ in _list_alternatives(kind) if is_struct(each)]


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def find_choices(kind: Any, path: str) -> list[str]:
    """Return the values of a field with a fixed set of values.

    Args:
      path: leads from a value of the type `kind` to the field, as the decoder writes it.
    """
    kinds = [kind]
    for step in _STEP.finditer(path):
        kinds = [
            inner
            for kind in kinds
            for each, _ in _list_alternatives(kind)
            for inner in _list_inner(each, step[1])
        ]
    return [
        choice
        for kind in kinds
        for each, _ in _list_alternatives(kind)
        if get_origin(each) is Literal
        for choice in get_args(each)
    ]


def _list_inner(kind: Any, name: str | None) -> Iterator[Any]:
    """List the types of a field; without a name, of the items or values."""
    if name is None:
        # Of a mapping the second, of a list the first.
        yield from get_args(kind)[get_origin(kind) is dict :][:1]
    elif is_struct(kind):
        literal: Any = Literal
        if name == kind.__struct_config__.tag_field:
            yield literal[kind.__struct_config__.tag]
        yield from (each for field, each in list_fields(kind) if field == name)


def _list_alternatives(
    kind: Any, bound: int | None = None
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
