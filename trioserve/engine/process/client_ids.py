"""Numbers of work, such as sequences, that tell which client of a core has it.

A client counts its work from a number of its own. The numbers of two clients do not meet: one
would need the work of a year, at thousands of sequences a second.
"""

from __future__ import annotations

from typing import Final

_SHIFT: Final = 40


def find_first_id(client: int) -> int:
    """Return the number of the first work of a client."""
    return client << _SHIFT


def find_client(work: int) -> int:
    """Return the client that has work of a number."""
    return work >> _SHIFT
