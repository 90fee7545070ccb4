"""The bound on the prompt tokens that wait.

A request may have all that is left of it. Of the places for sequences it may have half, so
that there is room for others. That rule would refuse a prompt of more than half of the bound
whenever anything waits, and no later try would help.
"""

from __future__ import annotations

from ..errors import QueueFull
from ..observe import round_retry
from ..scheduler import StepRates


def check_queued_tokens(
    num_queued: int, num_new: int, limit: int | None, rates: StepRates
) -> None:
    """Refuse a request whose prompt tokens have no room now.

    Args:
      limit: None sets none.

    Raises:
      QueueFull: other requests have too many tokens.
    """
    # A request that nothing waits before would never be taken otherwise.
    if limit is None or not num_queued or num_queued + num_new <= limit:
        return
    raise QueueFull(
        "prompt tokens",
        num_open=num_queued,
        num_possible=max(0, limit - num_queued),
        num_new=num_new,
        retry_after_seconds=round_retry(rates.token * (num_queued + num_new - limit)),
    )
