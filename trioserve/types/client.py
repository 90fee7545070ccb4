"""The client that a request belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client, whose requests share the device with those of other clients.

    Args:
      name: that of its API key; all requests without one are of the same client.
      weight: its share beside other clients with work.
    """

    name: str = ""
    weight: float = 1.0
