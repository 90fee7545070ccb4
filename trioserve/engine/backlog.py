"""The open work of each client that an engine holds, for admission and forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..types.admission import ClientHoldings
from ..types.client import Client
from .peer_work import ClientShare, Peers, PeerWork

# Steps that must be measured before their speed is trusted; scheduler/step_cost.py takes as
# many until a long step may be an exception.
MIN_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected times of a request, in seconds from now.

    Args:
      queue: until the device begins with it.
      first: until its first token.
      total: until its last token.
      alone: until its last token on an idle device.
    """

    queue: float
    first: float
    total: float
    alone: float


@dataclass(slots=True)
class ClientWork:
    """Counts of one client; the backlogs say which requests and tokens they count.

    Attributes:
      work: that for which the scheduler will charge the client, in computed tokens.
    """

    num_requests: int = 0
    num_tokens: int = 0
    work: float = 0.0
    weight: float = 1.0


def list_parts(
    clients: Mapping[str, ClientWork], client: Client, work: float
) -> Iterator[tuple[ClientWork, float]]:
    """Yield the other clients, and the part of their work that is done before new work ends.

    Clients share the device by their weights (scheduler/client_shares.py). So until work of
    this one is done, each other one gets work in the ratio of their weights, as far as it has
    any.

    Args:
      clients: by name.
      work: the new work of the client, with its own work that goes before.
    """
    level = work / client.weight
    for name, each in clients.items():
        if name != client.name and each.work > 0:
            yield each, min(1.0, each.weight * level / each.work)


class ClientBacklog:
    """Counts the open work of each client, also the work of the peers (peer_work.py).

    Attributes:
      places: sequences that have not ended, or texts that open requests have announced.
      queued_tokens: tokens of prompts and texts that wait.
    """

    # The counts besides those of clients that peers tell each other.
    _totals: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.places = ClientHoldings()
        self.queued_tokens = ClientHoldings()
        # Of the clients with places.
        self._weights: dict[str, float] = {}
        # Of the clients with requests that wait.
        self._queues: dict[str, ClientWork] = {}
        self._peers = Peers()

    def set_peer(self, number: int, work: PeerWork | None) -> None:
        """Count the present work of a peer; None if it has ended."""
        for sign, each in self._peers.replace(number, work):
            for name in self._totals:
                setattr(self, name, getattr(self, name) + sign * getattr(each, name))
            for share in each.clients:
                self._count_share(share, sign)

    def find_peer(self, number: int) -> PeerWork:
        """Return the work of a peer as it was told last."""
        return self._peers.find(number)

    def describe_own(self, offered_seconds: float = 0.0) -> PeerWork:
        """Return the work of this engine, for its peers."""
        totals = {
            name: getattr(self, name) - self._peers.count(name) for name in self._totals
        }
        own = self._peers.subtract(map(self._describe_share, self._weights))
        return PeerWork(clients=own, offered_seconds=offered_seconds, **totals)

    def _change_places(self, client: Client, number: int) -> None:
        self.places.change(client.name, number)
        if self.places.count(client.name):
            self._weights[client.name] = client.weight
        else:
            self._weights.pop(client.name, None)

    def _change_queue(
        self,
        client: Client,
        *,
        num_requests: int = 0,
        num_queued_tokens: int = 0,
        num_tokens: int = 0,
        work: float = 0.0,
    ) -> None:
        """Add to the counts of a client's requests that wait."""
        queue = self._queues.setdefault(client.name, ClientWork())
        queue.weight = client.weight
        queue.num_requests += num_requests
        queue.num_tokens += num_tokens
        queue.work += work
        self.queued_tokens.change(client.name, num_queued_tokens)
        if not queue.num_requests and not self.queued_tokens.count(client.name):
            del self._queues[client.name]

    def _describe_share(self, name: str) -> ClientShare:
        """Return the work of a client, the peers' included."""
        queue = self._queues.get(name, ClientWork())
        return ClientShare(
            name=name,
            weight=self._weights[name],
            num_places=self.places.count(name),
            num_queued_tokens=self.queued_tokens.count(name),
            num_requests=queue.num_requests,
            num_tokens=queue.num_tokens,
            work=queue.work,
        )

    def _count_share(self, share: ClientShare, sign: int) -> None:
        """Count the work of a peer's client, or take it away."""
        client = Client(name=share.name, weight=share.weight)
        self._change_places(client, sign * share.num_places)
        self._change_queue(
            client,
            num_requests=sign * share.num_requests,
            num_queued_tokens=sign * share.num_queued_tokens,
            num_tokens=sign * share.num_tokens,
            work=sign * share.work,
        )
