"""The places of requests that may run at once, counted for all HTTP processes together."""

from __future__ import annotations

from collections import Counter


class Places:
    """Counts the requests of each key, by HTTP process."""

    def __init__(self) -> None:
        self._taken: dict[str, Counter[int]] = {}

    def take(self, member: int, key: str, limit: int) -> bool:
        """Count another request of a key, unless `limit` are counted."""
        taken = self._taken.get(key, Counter())
        if taken.total() >= limit:
            return False
        taken[member] += 1
        self._taken[key] = taken
        return True

    def give_back(self, member: int, key: str) -> None:
        """Count a request of a key less; it was taken."""
        taken = self._taken[key]
        taken[member] -= 1
        if not taken.total():
            # Keys may change for ever.
            del self._taken[key]

    def drop(self, member: int) -> None:
        """Count no request of an HTTP process any more."""
        for key, taken in [*self._taken.items()]:
            taken.pop(member, None)
            if not taken.total():
                del self._taken[key]
