"""The one document at /, joined from the files of the folder browser/."""

from __future__ import annotations

from importlib.resources import files
import re
from typing import Final

# page.html names its styles and scripts as any document does, so editors and checkers of
# JavaScript know them. A browser gets no address, but the text itself.
_STYLE: Final = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
_SCRIPT: Final = re.compile(r'<script src="([\w.-]+)"></script>')


def join_page() -> str:
    """Return page.html with the text of each style and script in the place of its name."""
    html = _read("page.html")
    html = _STYLE.sub(lambda found: f"<style>\n{_read(found[1])}</style>", html)
    return _SCRIPT.sub(lambda found: f"<script>\n{_read(found[1])}</script>", html)


def _read(name: str) -> str:
    return (files(__package__) / "browser" / name).read_text("utf-8")
