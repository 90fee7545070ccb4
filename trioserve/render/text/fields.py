"""Messages, and what they hold, come as mappings, structs or dataclasses."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...errors import InvalidParameter


def read_fields(value: object, param: str) -> dict[str, object]:
    """Return the fields of an object.

    Raises:
      InvalidParameter: it is none; `param`.
    """
    if isinstance(value, Mapping):
        return dict(value)
    # Strings and None would pass through to_builtins as themselves.
    plain = value is None or isinstance(value, (str, bytes))
    fields = value if plain else msgspec.to_builtins(value)
    if not isinstance(fields, dict):
        raise InvalidParameter(param, "must be an object")
    return fields
