"""The parts of a JSON schema: finds the one that is wrong, and changes all of them."""

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

# Source: JSON Schema draft 2020-12, Validation, section 7.3.
_FORMATS: Final = frozenset(
    [
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri"),
        *("iri-reference", "uuid", "uri-template", "json-pointer"),
        *("relative-json-pointer", "regex"),
    ]
)

# Most parts are checked within a millisecond. Those that refer to large definitions take
# longer, so the clock decides.
_MAX_SECONDS: Final = 0.2


def locate(
    schema: Schema, reason: str, check: Callable[[Schema], str | None]
) -> tuple[str, str]:
    """Return the place of a mistake, and the mistake.

    llguidance names a keyword, and not its place. So the parts of the schema are tried one
    by one: the deepest one with the same mistake is the place.

    Args:
      reason: why the whole schema is refused.
      check: returns why a schema is refused; None if it is not.

    Returns:
      such as '#/properties/a', 'Unimplemented keys: ["not"]'
    """
    definitions: Schema = {
        name: schema[name]
        for name in ("$defs", "definitions")
        if isinstance(schema.get(name), dict)
    }
    # First without their contents. Otherwise a mistake in a definition would be found in the
    # parts that refer to it.
    empty = {name: dict.fromkeys(each, True) for name, each in definitions.items()}
    until = time.monotonic() + _MAX_SECONDS
    path = _descend(schema, reason, check, empty, until)
    if path == "#":
        path = _descend(schema, reason, check, definitions, until)
    return path, reason


def _descend(
    part: Schema,
    reason: str,
    check: Callable[[Schema], str | None],
    definitions: Schema,
    until: float,
) -> str:
    """Return the path of the deepest part with a mistake."""
    for step, child in _list_parts(part):
        if time.monotonic() > until:
            break
        if check({**definitions, **child}) == reason:
            path = _descend(child, reason, check, definitions, until)
            return f"#/{step}{path[1:]}"
    return "#"


def close_objects(schema: Schema) -> Schema:
    """Return the schema without other properties in objects that list their own."""

    def close(part: Schema) -> None:
        if "properties" in part:
            part.setdefault("additionalProperties", False)

    return _rewrite(schema, close)


def drop_unknown_formats(schema: Schema) -> Schema:
    """Return the schema without formats that JSON Schema does not define.

    They only describe a text, for example as a password. Source: JSON Schema draft
    2020-12, Validation, section 7.2.3.
    """

    def drop(part: Schema) -> None:
        if isinstance(part.get("format"), str) and part["format"] not in _FORMATS:
            del part["format"]

    return _rewrite(schema, drop)


def _rewrite(schema: Schema, change: Callable[[Schema], None]) -> Schema:
    """Return a copy in which every part has been changed, the inner ones first."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if isinstance(value, dict) and keyword in _ONE:
            copy[keyword] = _rewrite(value, change)
        elif isinstance(value, list) and keyword in _LIST:
            copy[keyword] = [_rewrite_any(each, change) for each in value]
        elif isinstance(value, dict) and keyword in _MAPPING:
            copy[keyword] = {k: _rewrite_any(v, change) for k, v in value.items()}
    change(copy)
    return copy


def _rewrite_any(part: Any, change: Callable[[Schema], None]) -> Any:
    return _rewrite(part, change) if isinstance(part, dict) else part


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
