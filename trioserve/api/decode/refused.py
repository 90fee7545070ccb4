"""Refuses fields that this server does not implement.

Such a field is refused unless its value is neutral: a neutral value means the behaviour
that the server has anyway, and client libraries send many of them. JSON's null is always
neutral. The tables of such fields stand beside the requests (shared/refused.py, and body.py
of each dialect).
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...errors import NotSupported

Neutral = tuple[object, ...]

# The advice in the error, or nothing, and the neutral values.
Refused = tuple[str, Neutral]

# All neutral values are far shorter, so longer values are refused without decoding.
_LONGEST_NEUTRAL_BYTES: Final = 64


def refuse(name: str, value: msgspec.Raw, refused: Refused) -> None:
    """Raise unless the value of a field that is not implemented is neutral.

    Raises:
      NotSupported: `param` is the field.
    """
    advice, neutral = refused
    if not _is_neutral(bytes(memoryview(value)[: _LONGEST_NEUTRAL_BYTES + 1]), neutral):
        raise NotSupported(name, advice)


def _is_neutral(value: bytes, neutral: Neutral) -> bool:
    if len(value) > _LONGEST_NEUTRAL_BYTES:
        return False
    try:
        decoded = msgspec.json.decode(value)
    # The value was not decoded before, so it may not be UTF-8.
    except ValueError:
        return False
    return decoded is None or decoded in neutral
