"""How much of one thing all requests hold together."""

from __future__ import annotations


class MemoryAccount:
    """Counts bytes against a limit, in the event loop's thread alone.

    Attributes:
      num_bytes: taken and not given back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Count bytes as held, unless that were too many."""
        if self.num_bytes + num_bytes > self._limit:
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        assert 0 <= num_bytes <= self.num_bytes, "only what was taken is given back"
        self.num_bytes -= num_bytes
