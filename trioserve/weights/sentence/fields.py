"""Reads JSON objects in a model's folder, and checks the types of their fields."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import WeightsBroken


class Fields:
    """The fields of an object in an untrusted file.

    Each method returns None for a field that is missing or null.

    Args:
      name: the file's path, relative to the folder, for errors.

    Raises:
      WeightsBroken: a field has another type than the method returns.
    """

    def __init__(self, values: object, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        if not isinstance(values, dict):
            raise self.make_error("is not a JSON object")
        self._values: dict[str, object] = values

    def make_error(self, reason: str) -> WeightsBroken:
        return WeightsBroken(str(self._folder), f"{self._name} {reason}")

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def names(self) -> set[str]:
        return set(self._values)

    def text(self, field: str) -> str | None:
        value = self._values.get(field)
        if value is None or isinstance(value, str):
            return value
        raise self._make_type_error(field, "a text")

    def flag(self, field: str) -> bool | None:
        value = self._values.get(field)
        if value is None or isinstance(value, bool):
            return value
        raise self._make_type_error(field, "true or false")

    def number(self, field: str) -> int | float | None:
        value = self._values.get(field)
        if value is None:
            return None
        # In Python True is a number, in JSON it is not.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._make_type_error(field, "a number")
        return value

    def count(self, field: str) -> int | None:
        """Return a whole number of at least 1."""
        value = self.number(field)
        if value is None:
            return None
        if not isinstance(value, int) or value < 1:
            raise self._make_type_error(field, "a whole number above 0")
        return value

    def texts(self, field: str) -> tuple[str, ...] | None:
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._make_type_error(field, "a list of texts")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) < len(value):
            raise self._make_type_error(field, "a list of texts")
        return texts

    def is_list(self, field: str) -> bool:
        return isinstance(self._values.get(field), list)

    def object(self, field: str) -> Fields | None:
        value = self._values.get(field)
        if value is None:
            return None
        return Fields(value, self._folder, f"{self._name}: {field!r}")

    def _make_type_error(self, field: str, wanted: str) -> WeightsBroken:
        return self.make_error(f"should have {wanted} as {field!r}")


def read_fields(folder: Path, name: str) -> Fields | None:
    """Read a file; None if there is none.

    Raises:
      WeightsBroken: it cannot be read, or is not a JSON object.
    """
    if not (folder / name).is_file():
        return None
    return Fields(read_json(folder, name), folder, name)


def read_json(folder: Path, name: str) -> object:
    """Read a file that exists.

    Raises:
      WeightsBroken: it cannot be read, or is not JSON.
    """
    try:
        value: object = json.loads((folder / name).read_bytes())
    except OSError as error:
        reason = f"{name}: {error.strerror or error}"
        raise WeightsBroken(str(folder), reason) from error
    except (ValueError, RecursionError) as error:
        raise WeightsBroken(str(folder), f"{name} is not JSON ({error})") from error
    return value
