"""The work of each client that an engine holds, for forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..types.client import Client


class ClientWork:
    """Counts of one client; the backlogs say which requests and tokens they count."""

    __slots__ = ("num_requests", "num_tokens", "weight")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self.weight = 1.0


def count_before(
    clients: Mapping[str, ClientWork],
    client: Client,
    count: Callable[[ClientWork], float],
    *,
    own: float,
    new: float,
) -> float:
    """Return the work that is done before new work of a client, or beside it.

    Clients share the device by their weights (scheduler/client_shares.py). So until the work
    of this one is done, each other one gets work in the ratio of their weights, as far as it
    has any.

    Args:
      clients: by name.
      count: the work of one of them, in requests or in tokens.
      own: the part of the client's own work that goes before the new one.
      new: the new work.
    """
    level = (own + new) / client.weight
    return own + sum(
        min(count(each), each.weight * level)
        for name, each in clients.items()
        if name != client.name
    )
