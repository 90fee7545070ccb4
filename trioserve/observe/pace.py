"""How fast work gets done, so that who is refused hears when to come again."""

from __future__ import annotations

import math

# What was done so long ago counts half of what is done now: long enough for a few
# requests of a slow model, and short enough to follow what the load is like.
_HALF_LIFE_SECONDS = 30.0
_DECAY = math.log(2) / _HALF_LIFE_SECONDS

# Beyond a minute nobody knows, and clients give up.
_MAX_SECONDS = 60


class Pace:
    """Measures how fast what is held gets done.

    Of time in which nothing is held nothing is learnt. It is told the time, in seconds.
    """

    def __init__(self) -> None:
        self._held = 0.0
        self._now = 0.0
        # What was done and the seconds that it took, both fading.
        self._done = 0.0
        self._seconds = 0.0

    def observe(self, now: float, held: float) -> None:
        """Tell how much is held from now on; what is less was done, or given up."""
        self._advance(now)
        self._done += max(0.0, self._held - held)
        self._held = held

    def estimate_seconds(self, now: float, amount: float) -> int:
        """Return for how long so much keeps everybody busy: 1 to 60 seconds.

        Who comes again then finds that what waits now is done. Sooner, they would wait
        in the queue instead; later, nothing might be left to do.
        """
        self._advance(now)
        # Nothing was done yet: as if the first of it were done at this moment.
        seconds = amount * self._seconds / max(self._done, 1.0)
        return math.ceil(min(max(seconds, 1.0), _MAX_SECONDS))

    def _advance(self, now: float) -> None:
        if self._held:
            kept = math.exp(-_DECAY * (now - self._now))
            self._done *= kept
            self._seconds = self._seconds * kept + (1.0 - kept) / _DECAY
        self._now = now
