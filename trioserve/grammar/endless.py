"""Finds JSON schemas that no finite value matches, because each value needs another one.

    {"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": "object"}

A schema has a value of some type if its parts have the values that it needs. At first, no
part has one. Each round finds more, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_, or_
from typing import Any, Final, TypeAlias

from ..types.json_pointer import find_part

Part: TypeAlias = dict[str, Any]

# The types of values that a part can have, as bits.
_BITS: Final = {
    **{"null": 1, "boolean": 2, "number": 4, "integer": 4, "string": 8},
    **{"array": 16, "object": 32},
}
_ALL: Final = 63
_PYTHON_TYPES: Final[dict[type, int]] = {
    type(None): 1,
    bool: 2,
    int: 4,
    float: 4,
    str: 8,
    list: 16,
    dict: 32,
}

# The parts are in an order in which two or three are enough, unless their references go
# round many circles. Such a schema is taken.
_MAX_ROUNDS: Final = 16

# Returns the types of a part.
_Find: TypeAlias = Callable[[Any], int]


def is_endless(schema: Part) -> bool:
    """Return whether no finite value matches a schema, because of its references.

    Schemas that exclude all values in other ways are left to llguidance. Mistakes in a
    schema counts as a part that any value matches.
    """
    parts = _list_parts(schema)
    types = dict.fromkeys(map(id, parts), 0)

    def find(child: Any) -> int:
        if child is False:
            return 0
        return types[id(child)] if isinstance(child, dict) else _ALL

    for _ in range(_MAX_ROUNDS):
        before = types.copy()
        for part in parts:
            types[id(part)] = _find_types(schema, part, find)
        if types[id(schema)]:
            return False
        if types == before:
            return True
    return False


def _list_parts(schema: Part) -> list[Part]:
    """Return the parts that the types of a schema depend on, before the dependent parts."""
    parts: list[Part] = []
    seen = {id(schema)}
    # Not by recursion: definitions may refer to each other in a long chain.
    path: list[tuple[Part, Iterator[Part]]] = [(schema, _list_needed(schema, schema))]
    while path:
        part, children = path[-1]
        child = next((each for each in children if id(each) not in seen), None)
        if child is None:
            parts.append(part)
            path.pop()
        else:
            seen.add(id(child))
            path.append((child, _list_needed(schema, child)))
    return parts


def _list_needed(schema: Part, part: Part) -> Iterator[Part]:
    needed: list[Part] = []

    def note(child: Any) -> int:
        if isinstance(child, dict):
            needed.append(child)
        return 0

    _find_types(schema, part, note)
    return iter(needed)


def _find_types(schema: Part, part: Part, find: _Find) -> int:
    """Return the types of the values of a part, as far as other parts' types are known."""
    types = _read_types(part)
    if isinstance(part.get("$ref"), str):
        types &= find(find_part(schema, part["$ref"]))
    for keyword, join, start in (
        ("anyOf", or_, 0),
        ("oneOf", or_, 0),
        ("allOf", and_, _ALL),
    ):
        if isinstance(part.get(keyword), list):
            types &= reduce(join, [find(child) for child in part[keyword]], start)
    if not all([find(child) for child in _list_needed_items(part)]):
        types &= ~_BITS["array"]
    if not all([find(child) for child in _list_needed_properties(part)]):
        types &= ~_BITS["object"]
    return types


def _read_types(part: Part) -> int:
    names = part.get("type", [*_BITS])
    names = names if isinstance(names, list) else [names]
    types = reduce(or_, [_BITS.get(str(name), _ALL) for name in names], 0)
    values = part.get("enum", _ALL)
    if isinstance(values, list):
        types &= reduce(or_, [_PYTHON_TYPES[type(value)] for value in values], 0)
    if "const" in part:
        types &= _PYTHON_TYPES[type(part["const"])]
    return types


def _list_needed_items(part: Part) -> Iterator[Any]:
    """Return the schemas of the items that every array has."""
    items = part.get("items", True)
    first = part.get("prefixItems", [])
    if isinstance(items, list):
        first, items = items, part.get("additionalItems", True)
    least = part.get("minItems", 0)
    if isinstance(least, int) and isinstance(first, list):
        yield from first[: max(0, least)]
        if least > len(first):
            yield items


def _list_needed_properties(part: Part) -> Iterator[Any]:
    """Return the schemas of the properties that every object has."""
    properties, required = part.get("properties", {}), part.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return
    # A pattern may have the name.
    others = "patternProperties" in part or part.get("additionalProperties", True)
    for name in required:
        yield properties.get(name, others) if isinstance(name, str) else True
    least = part.get("minProperties", 0)
    if isinstance(least, int) and least > 0 and not properties:
        yield others
