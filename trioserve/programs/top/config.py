"""The options of `trioserve top`: one field is one flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...config import RemoteConfig
from ...config.checks import check_seconds

Order = Literal["age", "phase", "tokens", "key", "id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenConfig:
    """The screen.

    Args:
      interval: Time from one look at the server to the next, in seconds.
      sort: Order of the requests at the beginning.
      once: Print one table and end, as if the output were not a terminal.
    """

    interval: float = 1.0
    sort: Order = "age"
    once: bool = False

    def __post_init__(self) -> None:
        check_seconds("interval", self.interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopConfig:
    """The server, and the way in which its requests are shown."""

    remote: RemoteConfig = field(default_factory=RemoteConfig)
    screen: ScreenConfig = field(default_factory=ScreenConfig)
