"""The time that a stream may take."""

from __future__ import annotations

from dataclasses import dataclass
import math

from ..engine import StreamPhase
from ..errors import DeadlineExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """The time that a stream may take, in seconds of trio.current_time().

    Args:
      ends_at: when its open sequences end, with the finish reason "deadline".
      starts_by: when the stream fails if the device has not begun with it.
      max_queue_seconds: the field by which the client chose starts_by.
    """

    ends_at: float = math.inf
    starts_by: float = math.inf
    max_queue_seconds: float = math.inf

    def find_next(self, phase: StreamPhase) -> float:
        """Return the time of the next limit of a stream in some phase."""
        return min(self.ends_at, self.starts_by) if phase == "queue" else self.ends_at

    def refuse_queue(self) -> DeadlineExceeded:
        """Return the error of a stream that has waited in the queue for too long."""
        return DeadlineExceeded(
            seconds=self.max_queue_seconds, phase="queue", param="max_queue_seconds"
        )
