"""Text that cannot command the terminal.

What a model or a server writes may hold control characters. A terminal would obey some: it
would move the cursor, rename the window, or type an answer into the program.
"""

from __future__ import annotations

import re
from typing import Final

# All but the tabulator and the line end: the two sets of control characters, and halves
# of characters, which cannot be encoded.
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

# The pictures of control characters, such as ␛.
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_DELETE_PICTURE: Final = "\u2421"


def make_safe(text: str) -> str:
    """Replace control characters by visible ones, and drop carriage returns."""
    return _UNSAFE.sub(_replace, text)


def make_line(text: str) -> str:
    """Return the same in one line."""
    return " ".join(make_safe(text).split())


def _replace(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\r":
        return ""
    if code < 0x20:
        return chr(_PICTURES + code)
    return _DELETE_PICTURE if code == _DELETE else "\ufffd"
