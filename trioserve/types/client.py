"""The client that a request belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client. It shares the device with other clients.

    Args:
      name: of its API key; all requests without one belong to the same client.
      weight: its share beside other clients with work.
    """

    name: str = ""
    weight: float = 1.0
