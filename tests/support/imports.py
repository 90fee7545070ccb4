"""The imports of a source file, found without parsing the rest, which takes ten times as long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
import re

_STATEMENT = re.compile(
    r"^ *(from [.\w]+ import (?:\([^)]*\)|[^(\n]+)|import \w[^\n]*)$", re.MULTILINE
)


@cache
def list_imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the statements, also those inside of functions and blocks."""
    return tuple(_find(path.read_text()))


def _find(text: str) -> Iterator[ast.Import | ast.ImportFrom]:
    # A line of a docstring may begin in the same way.
    for statement in _STATEMENT.findall(text):
        try:
            [node] = ast.parse(statement).body
        except SyntaxError:
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
