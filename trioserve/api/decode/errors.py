"""The errors of a body, in sentences that quote no more of it than a wrong word.

A field that is not implemented is refused unless its value is neutral: a neutral value means
the behaviour that the server has anyway, and client libraries send many of them. JSON's null
is always neutral. The tables of such fields stand beside the requests (shared/refused.py, and
body.py of each dialect).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter, NotSupported, list_choices
from .fields import REQUEST_ID_RULE
from .shapes import find_choices

Neutral = tuple[object, ...]

# The advice in the error, or nothing, and the neutral values.
Refused = tuple[str, Neutral]

# All neutral values are far shorter, so longer values are refused without decoding.
_LONGEST_NEUTRAL_BYTES: Final = 64


def explain(error: Exception, kind: Any, field: str = "") -> InvalidParameter:
    """Turn an error of the decoder into the error that the client gets.

    Args:
      kind: the type that was decoded.
      field: the name of the field that was decoded; empty for the whole body.
    """
    if isinstance(error, RecursionError):
        return _refuse(field, "is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return _refuse(field, "is not valid UTF-8")
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return _explain_value(text, kind, field)
    if "truncated" in text:
        # The decoder reports half a surrogate pair as the end of the input.
        text = "it ends early, or a string holds half a surrogate pair"
    reason = text.removeprefix("JSON is malformed: ")
    return _refuse(field, f"is not valid JSON: {reason}")


def _refuse(field: str, reason: str) -> InvalidParameter:
    if field:
        return InvalidParameter(field, reason)
    return InvalidParameter(None, f"The body {reason}.")


_WRONG_CHOICE: Final = re.compile(r"Invalid (enum )?value ")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_BOUND: Final = re.compile(r"Expected `\w+` (of length )?([<>]=) (\S+)")
# The message about a list that was split into its items.
_SPLIT_BOUND: Final = re.compile(r"Expected `array` of at most length (\d+)")
_BOUND_WORDS: Final = {"<=": "at most", ">=": "at least"}


def _explain_value(text: str, kind: Any, field: str) -> InvalidParameter:
    """Turn "Expected `int`, got `str` - at `$.n`" into the words of the API."""
    # The last path is the real one. A quoted value before it may look like a path.
    reason, separator, path = text.rpartition(" - at `$")
    if not separator:
        reason, path = text, ""
    path = path.rstrip("`")
    # The path has no keys of mappings; [...] stands for any of them.
    param = (field + path.replace("[...]", "")).removeprefix(".")
    if missing := _MISSING.fullmatch(reason):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidParameter(param, "is required")
    if not param:
        return InvalidParameter(None, "The body must be a JSON object.")
    if bound := _BOUND.fullmatch(reason):
        verb = "have a length of" if bound[1] else "be"
        reason = f"must {verb} {_BOUND_WORDS[bound[2]]} {bound[3]}"
    if split := _SPLIT_BOUND.match(reason):
        reason = f"must have a length of at most {split[1]}"
    # Request ids have the only pattern.
    if reason.startswith("Expected `str` matching regex"):
        reason = REQUEST_ID_RULE
    # msgspec quotes the whole value and does not list the right ones.
    if wrong := _WRONG_CHOICE.match(reason):
        # Without the quotes.
        sent = reason[wrong.end() + 1 : -1]
        return InvalidParameter(param, list_choices(find_choices(kind, path), sent))
    reason = reason.replace("`", "").replace(" | ", " or ")
    return InvalidParameter(param, reason[0].lower() + reason[1:])


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
