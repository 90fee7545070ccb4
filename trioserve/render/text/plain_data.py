"""Plain copies of the values that a chat template sees.

Programs may put rich objects into messages, such as images and arrays. Their methods
are unknown to the sandbox, and some of them write files. So templates get the types of
JSON alone.

Source: _plain_template_data in utils/chat_template_utils.py, transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import sys
from typing import Any


def copy_plain(value: object) -> Any:
    """Copy a value as scalars, lists, tuples and dicts.

    An object without fields becomes the name of its type, such as "<ndarray>".
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        # Subclasses may have further methods; this returns a plain string.
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {copy_plain(key): copy_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [copy_plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return _copy_object(value)


def _copy_object(value: object) -> Any:
    # A value of NumPy exists only if NumPy has been imported.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return copy_plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: copy_plain(getattr(value, field.name)) for field in fields}
    # Pydantic's models have this method.
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return copy_plain(dump())
    return f"<{type(value).__name__}>"
