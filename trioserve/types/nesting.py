"""Limits the nesting of JSON that templates and plug-ins walk through.

They walk in Python, with some calls for each level. A few hundred levels would end in a
RecursionError, which says nothing to a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..errors import InvalidParameter

# A JSON schema has two levels for each object in an object. The deepest tools that were
# seen have 20.
MAX_NESTING: Final = 64


def check_nesting(param: str, value: object) -> None:
    """Refuse decoded JSON that is nested too deeply. Takes 40 ns for each value.

    Raises:
      InvalidParameter
    """
    level: list[Sequence[Any]] = [[value]]
    for _ in range(MAX_NESTING + 1):
        level = [
            [*child.values()] if type(child) is dict else child
            for parent in level
            for child in parent
            if type(child) in (dict, list, tuple)
        ]
        if not level:
            return
    raise refuse_nesting(param)


def refuse_nesting(param: str) -> InvalidParameter:
    """Return the refusal of JSON that is nested too deeply."""
    return InvalidParameter(
        param, f"at most {MAX_NESTING} lists and objects may stand in each other"
    )
