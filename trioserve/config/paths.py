"""The type of options that name a file or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class PathMark:
    """Marks a type whose values are paths: help calls them FILE, and shells complete them."""


# The text of a path, for checkers and for the command line; the mark is found by
# options.list_options.
FilePath = Annotated[str, PathMark()]
