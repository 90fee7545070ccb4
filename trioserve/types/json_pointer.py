"""References within a JSON schema."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote


def find_part(schema: object, reference: str) -> Any:
    """Return a part of a schema by its JSON pointer; True, as for no condition, if missing.

    Source: RFC 6901.
    """
    found = schema
    head, *steps = unquote(reference).split("/")
    if head != "#":
        return True
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(step, True)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return True
    return found
