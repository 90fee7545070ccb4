"""The speed of work, which gives refused clients the time of their next try."""

from __future__ import annotations

import math

# Work of this age counts half as much as work of now. That is long enough for a few
# requests of a slow model, and short enough to follow the load.
_HALF_LIFE_SECONDS = 30.0
_DECAY = math.log(2) / _HALF_LIFE_SECONDS

# An estimate beyond a minute is worth little, and clients give up.
_MAX_SECONDS = 60


def round_retry(seconds: float) -> int:
    """Return a time after which a client may try again: 1 to 60 whole seconds."""
    return math.ceil(min(max(seconds, 1.0), _MAX_SECONDS))


class Pace:
    """Measures the speed at which held work is done.

    Time without work does not count. Callers pass the time, in seconds.
    """

    def __init__(self) -> None:
        self._held = 0.0
        self._now = 0.0
        # The work done and the seconds that it took; old work counts less and less.
        self._done = 0.0
        self._seconds = 0.0

    def observe(self, now: float, held: float) -> None:
        """Set the amount that is held from now on; a decrease counts as done."""
        self._advance(now)
        self._done += max(0.0, self._held - held)
        self._held = held

    def estimate_seconds(self, now: float, amount: float) -> int:
        """Return the time that an amount of work takes: 1 to 60 seconds.

        If a client tries again after this time, the work that waits now is done.
        """
        self._advance(now)
        # Before the first work is done, the estimate counts it as done now.
        return round_retry(amount * self._seconds / max(self._done, 1.0))

    def _advance(self, now: float) -> None:
        if self._held:
            kept = math.exp(-_DECAY * (now - self._now))
            self._done *= kept
            self._seconds = self._seconds * kept + (1.0 - kept) / _DECAY
        self._now = now
