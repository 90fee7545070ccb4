"""Fair shares between clients: the one that has used least, for its weight, goes first.

Each client with work has a line of its own, in which its requests take turns. Its use grows
with its work, divided by its weight. So clients that always have work get shares of the device
in the ratio of their weights, however many requests they send.

    use of a       0      100      200             300
    use of b              100 (it came here)  150      250
                          ^ the least use of those with work

A client that comes back has at least the least use of those with work: it does not save up
the time in which it had none. And what it used too much is not forgotten while others work.

Source: Sheng et al. 2024 (Fairness in Serving Large Language Models), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ..types.client import Client

LineT = TypeVar("LineT")


class _Share(Generic[LineT]):
    """One client.

    Attributes:
      num_open: its work that has not ended; with 0 it is idle.
    """

    __slots__ = ("line", "num_open", "used", "weight")

    def __init__(self, line: LineT) -> None:
        self.line = line
        self.weight = 1.0
        self.used = 0.0
        self.num_open = 0


class ClientShares(Generic[LineT]):
    """The use of all clients, and the line of each.

    Args:
      make_line: makes the empty line of a client.
    """

    def __init__(self, make_line: Callable[[], LineT]) -> None:
        self._make_line = make_line
        # Clients with work, and idle ones that have used more than these.
        self._shares: dict[str, _Share[LineT]] = {}
        self._num_active = 0

    @property
    def are_shared(self) -> bool:
        """Whether several clients have work."""
        return self._num_active > 1

    def __iter__(self) -> Iterator[LineT]:
        """Yield the lines, the one of the client with the least use first."""
        if len(self._shares) == 1:
            # Nothing is sorted on a server without keys.
            return iter([share.line for share in self._shares.values()])
        shares = sorted(self._shares.values(), key=lambda each: each.used)
        return iter([share.line for share in shares])

    def enter(self, client: Client) -> LineT:
        """Count new work of a client; returns its line."""
        share = self._shares.get(client.name)
        if share is None:
            share = self._shares[client.name] = _Share(self._make_line())
        share.weight = client.weight
        if not share.num_open:
            share.used = max(share.used, self._find_least())
            self._num_active += 1
        share.num_open += 1
        return share.line

    def leave(self, client: Client) -> None:
        """Count the end of work."""
        share = self._shares[client.name]
        share.num_open -= 1
        if not share.num_open:
            self._num_active -= 1
            self._forget_idle()

    def find(self, client: Client) -> LineT:
        """Return the line of a client that has work."""
        return self._shares[client.name].line

    def charge(self, client: Client, work: float) -> None:
        """Count work that the device does for a client."""
        share = self._shares[client.name]
        share.used += work / share.weight

    def _find_least(self) -> float:
        """Return the least use of clients with work; 0 without any."""
        used = [share.used for share in self._shares.values() if share.num_open]
        return min(used, default=0.0)

    def _forget_idle(self) -> None:
        """Forget the idle clients whose use does not matter any more."""
        least = self._find_least()
        self._shares = {
            name: share
            for name, share in self._shares.items()
            if share.num_open or (self._num_active and share.used > least)
        }
