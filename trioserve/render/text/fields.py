"""Reads the fields of messages and parts: mappings, structs or dataclasses."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...errors import InvalidParameter


def read_fields(value: object, param: str) -> dict[str, object]:
    """Return a new dict of an object's fields.

    Raises:
      InvalidParameter: the value is not an object.
    """
    if isinstance(value, Mapping):
        return dict(value)
    # to_builtins would return strings and None unchanged.
    plain = value is None or isinstance(value, (str, bytes))
    fields = value if plain else msgspec.to_builtins(value)
    if not isinstance(fields, dict):
        raise InvalidParameter(param, "must be an object")
    return fields
