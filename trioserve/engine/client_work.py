"""The work of each client that an engine holds, for forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..types.client import Client


class ClientWork:
    """Counts of one client; the backlogs say which requests and tokens they count.

    Attributes:
      work: that for which the scheduler will charge the client, in computed tokens.
    """

    __slots__ = ("num_requests", "num_tokens", "weight", "work")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self.work = 0.0
        self.weight = 1.0


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
