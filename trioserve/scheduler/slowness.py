"""The slowness of the last steps: the ratio of their measured to their predicted time."""

from __future__ import annotations

from collections import deque

# Weight of the last step in the mean, which so follows a change within four steps. In a
# simulation of a CPU that is 2.5 times slower for a dozen steps now and then, one step in ten
# exceeded its target by 81 % or more without the slowness, and by 7 % with it.
_RATE = 0.25

# A higher ratio may be due to a wrong prediction.
_MAX_RATIO = 4.0

# In a simulation, a device became three times slower while three times as many requests came
# as it had been able to answer. Of later requests, 77 were taken and then late without
# the slowness, and 1 with it. The median of five steps let in as many; where steps varied by a
# fifth, it refused twice as many requests that would have been in time.
_NUM_STEPS = 3


class Slowness:
    """Knows how much slower than predicted the last steps were.

    Both numbers are at least 1: a prediction that is too high costs little, one that is too
    low makes requests wait.

    Attributes:
      mean: follows the last step at once. It is for the next step, which becomes a little
        shorter if the last one was an exception.
      lasting: slowness of the fastest of the last three steps. It is for forecasts: one slow
        step must not refuse requests.
    """

    def __init__(self) -> None:
        self.mean = 1.0
        self._ratios = deque([1.0], maxlen=_NUM_STEPS)

    @property
    def lasting(self) -> float:
        return min(self._ratios)

    def note(self, ratio: float) -> None:
        """Count a step with a ratio of measured to predicted time."""
        ratio = min(max(ratio, 1.0), _MAX_RATIO)
        self._ratios.append(ratio)
        self.mean *= (ratio / self.mean) ** _RATE
