"""Foreign text within messages: written by a model, a server, a library or a user.

It may hold control characters. A terminal would obey some: it would move the cursor, rename the
window, or type an answer into the program. In a log, a line end would forge a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import json
import re
from typing import Final

# All but the tabulator and the line end: the two sets of control characters, and halves
# of characters, which cannot be encoded.
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

# The pictures of control characters, such as ␛.
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_DELETE_PICTURE: Final = "\u2421"

# Values of a client in a message, and characters of each: a client may send kilobytes.
_MOST_VALUES: Final = 8
_LONGEST_VALUE: Final = 64
# Names of models and adapters in a message. GET /v1/models has all of them.
_MOST_NAMES: Final = 16
_TYPE_NAMES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def escape(text: str) -> str:
    """Replace invisible characters by escapes, so that a text stays on its line.

    Our own log calls use it, too: under hypercorn's command the formatter is not ours.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def escape_ascii(text: str) -> str:
    """Do the same, and escape all that is not ASCII: its width in a terminal is not known."""
    return escape(text).encode("ascii", "backslashreplace").decode()


def escape_json(encoded: bytes) -> bytes:
    """Do the same in JSON, whose meaning stays: its escapes stand inside of texts alone."""
    text = encoded.decode()
    if text.isprintable():
        return encoded
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


def make_line(text: str) -> str:
    """Return a text of several lines as one line, with escapes."""
    return escape(" ".join(text.split()))


def make_safe(text: str) -> str:
    """Return a text of several lines without control characters.

    Each becomes a picture as wide as itself, so that a text that is laid out stays so; carriage
    returns are dropped. The invisible characters of languages and emoji stay.
    """
    return _UNSAFE.sub(_replace, text)


def _replace(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\r":
        return ""
    if code < 0x20:
        return chr(_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else "\ufffd"


def list_some(values: Sequence[object]) -> str:
    """Return the first of a client's values as a message shows them, and count the others."""
    shown = [
        repr(value[:_LONGEST_VALUE] if isinstance(value, str) else value)
        for value in values[:_MOST_VALUES]
    ]
    num_left = len(values) - len(shown)
    return ", ".join(shown) + (f" and {num_left} more" if num_left else "")


def join_names(names: Sequence[str]) -> str:
    """Return names as a sentence has them, and count those that would make it too long."""
    shown = [*names[:_MOST_NAMES]]
    if num_left := len(names) - len(shown):
        shown.append(f"{num_left} more")
    first = ", ".join(shown[:-1])
    return " and ".join(filter(None, (first, *shown[-1:])))


def list_choices(choices: Iterable[str], sent: object) -> str:
    """Return the reason for which a value is refused: the choices, and the value."""
    return f"must be one of {', '.join(choices)}, not {quote(sent)}"


def quote(sent: object) -> str:
    """Return the beginning of a client's text on one line, or the type of a value."""
    if not isinstance(sent, str):
        return _TYPE_NAMES.get(type(sent), "another type")
    end = "..." if len(sent) > _LONGEST_VALUE else ""
    return f"'{escape(sent[:_LONGEST_VALUE])}{end}'"


def shorten_message(error: BaseException) -> str:
    """Return the first line of a library's message; the lines after it are advice.

    Behind a colon, the next line is the reason.
    """
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1].strip()}"
    return lines[0] if lines else type(error).__name__
