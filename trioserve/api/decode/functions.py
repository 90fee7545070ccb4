"""The functions that a model may call, as clients describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...errors import InvalidParameter

# The optional fields: their types, and the same in words.
_OPTIONAL: Final[Mapping[str, tuple[type, str]]] = {
    "description": (str, "a text"),
    "parameters": (dict, "an object"),
    "strict": (bool, "true or false"),
}


def check_function(path: str, function: Mapping[str, object]) -> None:
    """Refuse a function without a name, or with a field of the wrong type.

    Raises:
      InvalidParameter
    """
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidParameter(f"{path}.name", "must be a text")
    for field, (kind, in_words) in _OPTIONAL.items():
        value = function.get(field)
        if value is not None and not isinstance(value, kind):
            raise InvalidParameter(f"{path}.{field}", f"must be {in_words}")


def drop_nulls(function: Mapping[str, object]) -> dict[str, object]:
    """Leave out what the client did not describe.

    Otherwise chat templates would show null to the model.
    """
    return {
        name: value
        for name, value in function.items()
        if value is not None or name not in _OPTIONAL
    }
