"""The bound on the prompt tokens that wait.

A request may have all that is left of it. Of the places for sequences it may have half, so
that there is room for others. That rule would refuse a prompt of more than half of the bound
whenever anything waits, and no later try would help.
"""

from __future__ import annotations

from ..errors import QueueFull
from ..scheduler.step_cost import StepRates
from ..types.client_holdings import ClientHoldings
from ..types.pace import round_retry


def check_queued_tokens(
    queued: ClientHoldings,
    client: str | None,
    num_new: int,
    limit: int | None,
    rates: StepRates,
) -> None:
    """Refuse a request whose prompt tokens have no room now.

    Args:
      queued: the tokens that wait.
      client: of the request; None stands for any.
      limit: None sets none.

    Raises:
      QueueFull: other requests have too many tokens.
    """
    if limit is None:
        return
    num_free = queued.count_free(limit, client)
    # A request with more tokens than its client's share would never be taken otherwise.
    if not queued.count(client) or num_new <= num_free:
        return
    raise QueueFull(
        "prompt tokens",
        num_open=queued.total,
        num_possible=max(0, num_free),
        num_new=num_new,
        retry_after_seconds=round_retry(rates.token * (num_new - num_free)),
    )
