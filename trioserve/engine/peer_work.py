"""The open work of other engines on the same core, for admission and forecasts.

With several HTTP processes, each has an engine, and all of them share the core. Each tells
the others its work. A report is some milliseconds old, so together they may exceed a
bound by the requests of that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientShare:
    """The open work of one client in one engine.

    Args:
      num_places: sequences, or texts that requests have reserved.
      num_queued_tokens: prompt tokens that the bound on them counts.
      num_requests, num_tokens, work: see ClientWork.
    """

    name: str
    weight: float = 1.0
    num_places: int = 0
    num_queued_tokens: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    work: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWork:
    """The open work of one engine; see Backlog, whose names the counts have.

    Args:
      offered_seconds: the device's time for the prompts of all requests so far.
    """

    clients: tuple[ClientShare, ...] = ()
    num_open_requests: int = 0
    num_queued_requests: int = 0
    num_running: int = 0
    num_context_tokens: int = 0
    num_output_tokens: int = 0
    offered_seconds: float = 0.0


_COUNTS = tuple(each.name for each in fields(ClientShare))[2:]
TOTALS = tuple(each.name for each in fields(PeerWork))[1:-1]


class Peers:
    """The other engines, by their numbers."""

    def __init__(self) -> None:
        self._works: dict[int, PeerWork] = {}

    def replace(
        self, number: int, work: PeerWork | None
    ) -> Iterator[tuple[int, PeerWork]]:
        """Take the present work of a peer, or None if it has ended.

        Yields:
          -1 and the work that must not count any more; 1 and the work that counts now.
        """
        old = self._works.pop(number, None)
        if old is not None:
            yield -1, old
        if work is not None:
            self._works[number] = work
            yield 1, work

    def find(self, number: int) -> PeerWork:
        """Return the work of a peer; an empty one if it has not told any."""
        return self._works.get(number, PeerWork())

    def count(self, name: str) -> int:
        """Return the sum of a count over all peers."""
        return sum(getattr(each, name) for each in self._works.values())

    def subtract(self, shares: Iterable[ClientShare]) -> tuple[ClientShare, ...]:
        """Return the shares less the peers' part; shares without work are left out."""
        held: dict[str, Counter[str]] = {}
        for work in self._works.values():
            for share in work.clients:
                counts = held.setdefault(share.name, Counter())
                counts.update({name: getattr(share, name) for name in _COUNTS})
        own = (_take(each, held.get(each.name, {})) for each in shares)
        return tuple(each for each in own if each.num_places or each.num_queued_tokens)


def _take(share: ClientShare, counts: Mapping[str, float]) -> ClientShare:
    if not counts:
        return share
    rest = {name: getattr(share, name) - counts[name] for name in _COUNTS}
    return ClientShare(name=share.name, weight=share.weight, **rest)
