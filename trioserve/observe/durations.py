"""A histogram of short times, cheap enough for 100,000 values a second."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

# In seconds; each bucket includes its bound. Nearly all steps of tasks take less than
# 0.1 ms, too little to be noticed by users. A second is noticed by all of them.
BOUNDS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 0.5, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations, counted by bucket.

    Attributes:
      bounds: upper bounds of the buckets in seconds, inclusive, rising.
      counts: durations in each bucket; the last count is of durations above all bounds.
      total_seconds: the sum of all durations.
      longest_seconds: the longest duration; 0 if there was none.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_seconds: float
    longest_seconds: float

    @property
    def num_durations(self) -> int:
        return sum(self.counts)


class Tally:
    """Counts durations.

    Nearly all are short, and a call of add() costs more than the counting. So callers
    count short ones themselves:

        if seconds <= tally.quick_limit:
            tally.num_quick += 1
            tally.quick_seconds += seconds
        else:
            tally.add(seconds)

    Args:
      quick_limit: the longest duration that callers count themselves, in seconds.
    """

    __slots__ = (
        "quick_limit",
        "num_quick",
        "quick_seconds",
        "_highest_limit",
        "_counts",
        "_seconds",
        "_longest",
    )

    def __init__(self, *, quick_limit: float = BOUNDS[0]) -> None:
        self._highest_limit = min(quick_limit, BOUNDS[0])
        # Invariant: a duration up to the limit lies in the first bucket and is not the
        # longest. So the limit begins below all durations, and rises with the longest.
        self.quick_limit = -1.0
        self.num_quick = 0
        self.quick_seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration, short or long."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
        self.quick_limit = min(self._longest, self._highest_limit)

    def statistics(self) -> Durations:
        return Durations(
            bounds=BOUNDS,
            counts=(self._counts[0] + self.num_quick, *self._counts[1:]),
            total_seconds=self._seconds + self.quick_seconds,
            longest_seconds=self._longest,
        )
