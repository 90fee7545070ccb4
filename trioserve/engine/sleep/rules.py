"""When a core falls asleep, and when it wakes: decisions without a clock and without I/O."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Final

from ...types.sleep import SleepLevel

# The time between two looks at a core that is busy.
_LOOK_SECONDS: Final = 1.0

# The time in which requests are refused after the core could not wake. As RETRY_SECONDS of
# several models.
PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRule:
    """The rule by which an engine falls asleep by itself.

    Args:
      seconds: the time without work; None for never.
      level: of that sleep.
    """

    seconds: float | None = None
    level: SleepLevel = 2


class SleepRules:
    """Decides about the sleep of a core; times are seconds of any clock.

    Attributes:
      order: the level of an operator's order; 0 without one. It stands until `wake`.
      ends_requests: the order ends the requests that run.
    """

    def __init__(self, idle: IdleRule) -> None:
        self._idle = idle
        self._worked_at = 0.0
        self._is_wanted = False
        self.order: SleepLevel = 0
        self.ends_requests = False

    def note_work(self, now: float) -> None:
        """Note that there was work, or that the core has started."""
        self._worked_at = now

    def sleep(self, level: SleepLevel, *, ends_requests: bool) -> None:
        """Take the order to sleep; a later order can only give back more."""
        self.order = max(self.order, level)
        self.ends_requests = ends_requests
        self._is_wanted = False

    def wake(self) -> None:
        """Take the order to wake."""
        self.order, self.ends_requests = 0, False
        self._is_wanted = True

    def fall_asleep(self) -> None:
        """Note that the core falls asleep; later orders to wake are about this sleep."""
        self._is_wanted = False

    def note_failed(self) -> None:
        """Note that the core could not wake; the order to wake has been carried out."""
        self._is_wanted = False

    @property
    def has_order(self) -> bool:
        """True if an operator has said what comes next."""
        return self.order > 0 or self._is_wanted

    def note_awake(self, now: float) -> None:
        """Note that the model can run again, after a sleep."""
        self._worked_at = now

    def choose_level(self, now: float, *, is_at_rest: bool) -> SleepLevel:
        """Return the level at which a core that is awake falls asleep now; 0 if it stays.

        Args:
          is_at_rest: it has no work.
        """
        if not is_at_rest:
            return 0
        if self.order:
            return self.order
        seconds = self._idle.seconds
        if seconds is not None and now - self._worked_at >= seconds:
            return self._idle.level
        return 0

    def find_next_look(self, now: float, *, is_at_rest: bool) -> float:
        """Return when to decide again, if nothing is noted before."""
        seconds = self._idle.seconds
        if seconds is None:
            return math.inf
        if is_at_rest:
            return self._worked_at + seconds
        return now + min(seconds, _LOOK_SECONDS)

    def wants_wake(self, *, is_at_rest: bool) -> bool:
        """Return whether a sleeping core wakes: for work, or by an order."""
        return not self.order and (self._is_wanted or not is_at_rest)
