"""The work of one client that an engine holds, for forecasts."""

from __future__ import annotations


class ClientWork:
    """Counts of one client; the backlogs say which requests and tokens they count."""

    __slots__ = ("num_requests", "num_tokens", "weight")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self.weight = 1.0
