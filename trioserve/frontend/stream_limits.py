"""The time that a stream may take."""

from __future__ import annotations

from dataclasses import dataclass
import math

import trio

from ..engine.forecast import Forecast
from ..errors import DeadlineExceeded, DeadlineUnreachable
from ..types.admission import round_retry

# The time that others add is multiplied by this. It is uncertain, and a crowded server takes
# requests until the forecast of the next one reaches its limit: half of them would be late.
# In a simulated overload, with five times as many requests as could be answered, 0.5 to 1.1
# times as many were answered in time as without overload if forecasts were taken as they are,
# 0.8 to 1.9 times with 1.25, and 1.03 times or more with 1.5.
_SAFETY = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The time that a stream may take, in seconds of trio.current_time().

    Args:
      ends_at: when its open sequences end, with the finish reason "deadline".
      starts_by: when the stream fails if the device has not begun with it.
      max_queue_seconds: the field by which the client chose starts_by.
      end_param: the field or the option by which ends_at was chosen.
      refuses_late: refuse a request at once if its limits cannot be met.
    """

    ends_at: float = math.inf
    starts_by: float = math.inf
    max_queue_seconds: float = math.inf
    end_param: str = "timeout"
    refuses_late: bool = False

    @property
    def needs_forecast(self) -> bool:
        """True if a request may be refused because of its limits."""
        return self.refuses_late and min(self.ends_at, self.starts_by) < math.inf

    def check(self, forecast: Forecast) -> None:
        """Refuse a request that other requests would make late.

        A request that would be late on an idle device, too, is refused only if it would not
        even have its first token: its client wants as much as there is time for.

        Raises:
          DeadlineUnreachable
        """
        now = trio.current_time()
        left = self.ends_at - now
        if forecast.alone > left:
            needed = forecast.first + (_SAFETY - 1) * forecast.queue
        else:
            added = max(0.0, forecast.total - forecast.alone)
            needed = forecast.alone + _SAFETY * added
        _check(self.end_param, needed, left)
        queued = _SAFETY * forecast.queue
        _check("max_queue_seconds", queued, self.starts_by - now)

    @property
    def leaves_queue_by(self) -> float:
        """The time until which a stream may be in the queue."""
        return min(self.ends_at, self.starts_by)

    def refuse_queue(self) -> DeadlineExceeded:
        """Return the error of a stream that has waited in the queue for too long."""
        return DeadlineExceeded(
            seconds=self.max_queue_seconds, phase="queue", param="max_queue_seconds"
        )


def _check(param: str, needed: float, left: float) -> None:
    # If no time is left at all, the deadline itself answers.
    if needed > left > 0:
        raise DeadlineUnreachable(
            param,
            needed_seconds=needed,
            left_seconds=left,
            retry_after_seconds=round_retry(needed - left),
        )
