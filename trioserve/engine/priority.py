"""The check of a request's priority."""

from __future__ import annotations

from ..config import SchedulingPolicy
from ..errors import InvalidParameter

# Priorities lie between this number and its negative. With larger ones a request could be
# passed by others for hours, since one level is worth 10 seconds of waiting.
MAX_PRIORITY = 100


def check_priority(priority: int, policy: SchedulingPolicy) -> None:
    """Refuse a priority that the policy does not allow.

    Raises:
      InvalidParameter
    """
    if priority != 0 and policy != "priority":
        raise InvalidParameter(
            "priority", "is only taken with --scheduling-policy priority"
        )
    if abs(priority) > MAX_PRIORITY:
        raise InvalidParameter(
            "priority", f"must be between {-MAX_PRIORITY} and {MAX_PRIORITY}"
        )
