"""The places where requests are worked on, for reports to people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio

from ...observe import Owner, find_owner_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Some workers of one kind.

    Args:
      name: of one of them, such as "renderer thread".
      limiter: has a token for each.
      list_waiting: returns the work that waits for one.
    """

    name: str
    limiter: trio.CapacityLimiter
    list_waiting: Callable[[], Iterable[object]] = tuple

    def locate(self, owner: Owner) -> str | None:
        """Return where the work of a request is; None if it is not here."""
        if _has_work_of(owner, self.limiter.statistics().borrowers):
            return self.name
        if _has_work_of(owner, self.list_waiting()):
            return f"queue for a {self.name}"
        return None


def _has_work_of(owner: Owner, things: Iterable[object]) -> bool:
    return any(find_owner_of(each) is owner for each in things)
