"""Errors of the JSON decoder, in sentences that quote no more of the body than a wrong word."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ...errors import InvalidParameter, list_choices
from .fields import REQUEST_ID_RULE
from .shapes import find_choices


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
