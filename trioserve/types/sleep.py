"""The sleep of an engine: it gives memory back while nobody needs the model.

level 0    awake
level 1    the KV blocks and states are given back; weights and adapters stay
level 2    the weights are given back, too; waking loads the model again
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SleepLevel = Literal[0, 1, 2]

SleepPhase = Literal["awake", "falling asleep", "asleep", "waking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepState:
    """The sleep of an engine at one moment.

    Args:
      level: of the memory that is given back now; 0 while requests are computed.
      is_ordered: an operator wants it to sleep, so that requests are refused until an operator
        wakes it. An engine that sleeps because it was idle wakes by itself.
      ends_requests: the order also ends the requests that run.
      levels: the levels that the engine can have.
      memory_bytes: that its process holds while it sleeps; 0 at other times.
      failure: the reason why it could not wake a moment ago; empty if there is none. Requests
        are refused until it is empty again, and then one may wake it.
    """

    phase: SleepPhase = "awake"
    level: SleepLevel = 0
    is_ordered: bool = False
    ends_requests: bool = False
    levels: tuple[SleepLevel, ...] = ()
    memory_bytes: int = 0
    failure: str = ""

    @property
    def is_sleeping(self) -> bool:
        """True from the moment when memory is given back until the model can run again."""
        return self.phase in ("asleep", "waking")

    @property
    def refuses_requests(self) -> bool:
        """True if no requests are taken now."""
        return self.is_ordered or bool(self.failure)

    @property
    def fails_requests(self) -> bool:
        """True if open requests cannot go on."""
        is_ended = self.is_ordered and (self.ends_requests or self.is_sleeping)
        return is_ended or bool(self.failure)
