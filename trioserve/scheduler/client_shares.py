"""Fair shares between clients: the one that has used least, for its weight, goes first.

Each client with work has a line of its own, in which its requests take turns. Its use grows
with its work, divided by its weight. So clients that always have work get shares of the device
in the ratio of their weights, however many requests they send.

    use of a       0      100      200             300
    use of b              100 (it came here)  150      250
                          ^ the least use of clients with waiting work

A client whose work begins to wait has at least the least use of all waiting clients: it does
not save up the time in which it asked for less than its share, also if some of its work ran all
the time. If nobody waits, it has at least the use of the client that waited last. And what it
used too much is not forgotten while others work.

Source: Sheng et al. 2024 (Fairness in Serving Large Language Models), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..types.client import Client

LineT = TypeVar("LineT")


@dataclass(slots=True, eq=False)
class _Share(Generic[LineT]):
    """One client.

    Attributes:
      num_open: its work that has not ended; with 0 it is idle.
      num_waiting: the part of it that waits for the device.
    """

    line: LineT
    weight: float = 1.0
    used: float = 0.0
    num_open: int = 0
    num_waiting: int = 0


class ClientShares(Generic[LineT]):
    """The use of all clients, and the line of each.

    Args:
      make_line: makes the empty line of a client.

    Attributes:
      are_shared: several clients have work.
    """

    def __init__(self, make_line: Callable[[], LineT]) -> None:
        self._make_line = make_line
        # Clients with work, the one that waited last, and idle ones that have used more.
        self._shares: dict[str, _Share[LineT]] = {}
        self._last: _Share[LineT] | None = None
        self._num_active = 0
        self.are_shared = False

    def __iter__(self) -> Iterator[LineT]:
        """Yield the lines, beginning with the client that has used least.

        Among equals, the client with the least running work for its weight is first: a new
        client begins with the use of another, whose use may stand still for a while.
        """
        if len(self._shares) == 1:
            # Nothing is sorted on a server without keys.
            return iter([share.line for share in self._shares.values()])
        shares = sorted(self._shares.values(), key=_get_standing)
        return iter([share.line for share in shares])

    def find_next(self) -> LineT | None:
        """Return the first of these lines in which work waits, or None."""
        waiting = [share for share in self._shares.values() if share.num_waiting]
        return min(waiting, key=_get_standing).line if waiting else None

    def enter(self, client: Client) -> None:
        """Count new work of a client, which does not wait yet."""
        share = self._shares.get(client.name)
        if share is None:
            share = self._shares[client.name] = _Share(self._make_line())
        share.weight = client.weight
        if not share.num_open:
            self._count_active(1)
        share.num_open += 1

    def start_waiting(self, client: Client) -> LineT:
        """Count work that begins to wait, for the first time or again; returns its line."""
        share = self._shares[client.name]
        if not share.num_waiting:
            used = [each.used for each in self._shares.values() if each.num_waiting]
            least = min(used, default=self._last.used if self._last else 0.0)
            share.used = max(share.used, least)
        share.num_waiting += 1
        return share.line

    def end_waiting(self, client: Client) -> LineT:
        """Count work that waits no more: it runs now, or ends; returns its line."""
        share = self._shares[client.name]
        share.num_waiting -= 1
        if not share.num_waiting:
            self._last = share
        return share.line

    def leave(self, client: Client) -> None:
        """Count the end of work."""
        share = self._shares[client.name]
        share.num_open -= 1
        if not share.num_open:
            self._count_active(-1)
            self._forget_idle()

    def find(self, client: Client) -> LineT:
        """Return the line of a client that has work."""
        return self._shares[client.name].line

    def get_used(self, client: Client) -> float:
        """Return the use of a client that has work."""
        return self._shares[client.name].used

    def charge(self, client: Client, work: float) -> None:
        """Count work that the device does for a client."""
        share = self._shares[client.name]
        share.used += work / share.weight

    def _count_active(self, change: int) -> None:
        self._num_active += change
        # An attribute, because each step asks for it more than once.
        self.are_shared = self._num_active > 1

    def _forget_idle(self) -> None:
        """Forget the idle clients whose use does not matter any more."""
        if not self._num_active:
            self._shares, self._last = {}, None
            return
        kept = [share for share in self._shares.values() if self._is_needed(share)]
        least = min(share.used for share in kept)
        self._shares = {
            name: share
            for name, share in self._shares.items()
            if self._is_needed(share) or share.used > least
        }

    def _is_needed(self, share: _Share[LineT]) -> bool:
        return share.num_open > 0 or share is self._last


def _get_standing(share: _Share[LineT]) -> tuple[float, float]:
    return share.used, (share.num_open - share.num_waiting) / share.weight
