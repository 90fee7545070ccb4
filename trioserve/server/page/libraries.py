"""The libraries of the folder libraries/, which the page loads when a message needs them.

A script is allowed by its hash: the policy has it, and the page's import map tells the
browser to check it (HTML, 8.1.5.3; CSP 3, 6.7.1.1). A browser that does not know this shows
code without colours, and formulas as their text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
import hashlib
from importlib.resources import files
from typing import Final

import msgspec

FOLDER: Final = "libraries"

_TYPES: Final = {"js": "text/javascript", "css": "text/css"}

# The names under which the page imports the scripts. Temml has no module without blanks and
# comments, so its script gets the line that makes it one.
_MODULES: Final = {"highlight": "highlight.min.js", "temml": "temml.min.js"}
_ENDINGS: Final = {"temml.min.js": "\nexport { temml as default };\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A file for the page."""

    content: bytes
    content_type: str

    @property
    def integrity(self) -> str:
        """The hash as policies and import maps write it."""
        digest = hashlib.sha256(self.content).digest()
        return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def load_libraries() -> Mapping[str, Library]:
    """Return the files by their names."""
    folder = files(__package__) / FOLDER
    return {
        name: Library(
            content=(
                (folder / name).read_text("utf-8") + _ENDINGS.get(name, "")
            ).encode(),
            content_type=f"{_TYPES[name.rsplit('.', 1)[1]]}; charset=utf-8",
        )
        for name in (*_MODULES.values(), "temml.css")
    }


def write_import_map() -> str:
    """Write the import map of the page. Its addresses are relative to the page's."""
    addresses = {module: f"./{FOLDER}/{name}" for module, name in _MODULES.items()}
    hashes = {
        addresses[module]: load_libraries()[name].integrity
        for module, name in _MODULES.items()
    }
    return msgspec.json.encode({"imports": addresses, "integrity": hashes}).decode()


def list_script_hashes() -> list[str]:
    return [load_libraries()[name].integrity for name in _MODULES.values()]
