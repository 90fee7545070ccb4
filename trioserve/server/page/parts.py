"""The documents, each joined from files of the folder browser/."""

from __future__ import annotations

from importlib.resources import files
import re
from typing import Final

from .libraries import write_import_map

# page.html and reference.html name their styles and scripts as any document does, so editors
# and checkers of JavaScript know them. A browser gets no address, but the text itself.
_STYLE: Final = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
_SCRIPT: Final = re.compile(r'<script src="([\w.-]+)"></script>')
_IMPORT_MAP: Final = '<script type="importmap"></script>'


def join_page() -> str:
    """Return page.html with the text of its styles and scripts, and with its import map."""
    html = join_parts(_read("page.html"))
    return html.replace(_IMPORT_MAP, f"{_IMPORT_MAP[:-9]}{write_import_map()}</script>")


def join_parts(html: str) -> str:
    """Put the text of each style and script in the place of its name."""
    html = _STYLE.sub(lambda found: f"<style>\n{_read(found[1])}</style>", html)
    return _SCRIPT.sub(lambda found: f"<script>\n{_read(found[1])}</script>", html)


def _read(name: str) -> str:
    return (files(__package__) / "browser" / name).read_text("utf-8")
