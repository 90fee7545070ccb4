"""The page at /."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from .document import Document


@cache
def load_page() -> Document:
    return Document((files(__package__) / "page.html").read_text("utf-8"))
