"""The parts of a JSON schema: finds the one that is wrong, and closes objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import time
from typing import Any, Final

Schema = dict[str, Any]

# Keywords whose values are schemas, lists of schemas, and mappings to schemas.
# Source: JSON Schema draft 2020-12.
_ONE: Final = ("additionalProperties", "items", "not", "contains", "propertyNames")
_LIST: Final = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_MAPPING: Final = ("properties", "patternProperties", "$defs", "definitions")

# Most parts are checked within a millisecond. Those that refer to large definitions take
# longer, so the clock decides.
_MAX_SECONDS: Final = 0.2


def locate(schema: Schema, reason: str, check: Callable[[Schema], str | None]) -> str:
    """Return a mistake together with its place.

    llguidance names a keyword, and not its place. So the parts of the schema are tried one
    by one: the deepest one with the same mistake is the place.

    Args:
      reason: why the whole schema is refused.
      check: returns why a schema is refused; None if it is not.

    Returns:
      such as '#/properties/a: Unimplemented keys: ["not"]'
    """
    definitions: Schema = {
        name: schema[name] for name in ("$defs", "definitions") if name in schema
    }
    path, part = "#", schema
    until = time.monotonic() + _MAX_SECONDS
    is_found = True
    while is_found:
        is_found = False
        for step, child in _list_parts(part):
            if time.monotonic() > until:
                break
            if check({**definitions, **child}) == reason:
                path, part, is_found = f"{path}/{step}", child, True
                break
    return f"{path}: {reason}"


def close_objects(schema: Schema) -> Schema:
    """Return the schema without other properties in objects that list their own."""
    closed = dict(schema)
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = close_objects(schema[keyword])
    for keyword in _LIST:
        if isinstance(schema.get(keyword), list):
            closed[keyword] = [_close(each) for each in schema[keyword]]
    for keyword in _MAPPING:
        if isinstance(schema.get(keyword), dict):
            closed[keyword] = {k: _close(each) for k, each in schema[keyword].items()}
    if "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _close(part: Any) -> Any:
    return close_objects(part) if isinstance(part, dict) else part


def _list_parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Return the parts of a schema with the last steps of their paths."""
    for keyword in (*_ONE, *_LIST, *_MAPPING):
        value = schema.get(keyword)
        if isinstance(value, dict) and keyword in _ONE:
            yield keyword, value
        elif isinstance(value, dict) and keyword in _MAPPING:
            for name, child in value.items():
                if isinstance(child, dict):
                    yield f"{keyword}/{_escape(name)}", child
        elif isinstance(value, list) and keyword in _LIST:
            for index, child in enumerate(value):
                if isinstance(child, dict):
                    yield f"{keyword}/{index}", child


def _escape(name: str) -> str:
    """Write a name as a part of a JSON pointer. Source: RFC 6901, section 3."""
    return name.replace("~", "~0").replace("/", "~1")
