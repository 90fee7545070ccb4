"""The arguments of a call as an object, also if the answer ended within it."""

from __future__ import annotations

from contextlib import suppress
import re
from typing import Final

import msgspec

NO_ARGUMENTS: Final = msgspec.Raw(b"{}")

# A string, which may be cut off before its end; a bracket or a sign; a number or a word.
_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*+(?:(?P<end>")|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL
)
_CLOSING: Final = {"{": "}", "[": "]"}


def read_arguments(arguments: str) -> msgspec.Raw:
    """Return the arguments of a call; the whole members if the answer ended within it."""
    for text in (arguments, keep_whole_members(arguments)):
        with suppress(ValueError):
            msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            return msgspec.Raw(text.encode())
    return NO_ARGUMENTS


def keep_whole_members(text: str) -> str:
    """Return an object with the members, and the items of lists, that are whole.

    A client that reads a stream of pieces does the same.

    Args:
      text: the beginning of a JSON object. A number at its end may go on, and is left out.
    """
    closings: list[str] = []
    kept, is_value = 0, True
    for token in _TOKEN.finditer(text):
        written = token[0]
        if not closings and (kept or written != "{"):
            break
        if written in _CLOSING:
            closings.append(_CLOSING[written])
            is_value = written == "["
        elif written in ("}", "]"):
            if closings[-1] != written:
                # A model may write anything.
                break
            closings.pop()
        elif written in (",", ":"):
            is_value = written == ":" or closings[-1] == "]"
            continue
        elif not is_value or (token.end() == len(text) and not token["end"]):
            continue
        # Invariant: no bracket follows that does not come here, too.
        kept = token.end()
    return text[:kept] + "".join(reversed(closings))
