"""The texts that wait to be read, and forecasts of the time until a request's are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import math

from ...scheduler.step_cost import StepRates
from ...types.client import Client
from ...types.client_holdings import ClientHoldings
from ..client_work import ClientWork, list_parts
from ..forecast import MIN_STEPS, Forecast
from ..peer_work import ClientShare
from .core import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingBacklogStatistics:
    """The present state.

    Args:
      num_tokens: of all texts that the device has not read.
      num_jobs: these texts.
      num_clients: those with open requests.
    """

    num_tokens: int
    num_jobs: int
    num_clients: int


class PoolingBacklog:
    """Counts the tokens of all texts that the device has not read, also the peers' texts.

    Attributes:
      queued_tokens: all of them.
    """

    def __init__(self) -> None:
        self.queued_tokens = ClientHoldings()
        self._jobs: dict[JobId, tuple[str, int]] = {}
        self._work: dict[str, ClientWork] = {}

    def statistics(self) -> PoolingBacklogStatistics:
        """Return the present state."""
        return PoolingBacklogStatistics(
            num_tokens=self.queued_tokens.total,
            num_jobs=len(self._jobs),
            num_clients=len(self._work),
        )

    @contextmanager
    def hold(self, client: Client) -> Iterator[None]:
        """Count a request of a client as open in the block."""
        work = self._work.setdefault(client.name, ClientWork())
        work.weight = client.weight
        work.num_requests += 1
        try:
            yield
        finally:
            work.num_requests -= 1
            if not work.num_requests:
                del self._work[client.name]

    def add(self, job: JobId, num_tokens: int, client: Client) -> None:
        """Count a text of an open request."""
        self._jobs[job] = client.name, num_tokens
        self._change(client.name, num_tokens)

    def drop(self, job: JobId) -> None:
        """Remove a text."""
        client, num_tokens = self._jobs.pop(job)
        self._change(client, -num_tokens)

    def clear(self) -> None:
        for job in list(self._jobs):
            self.drop(job)

    def describe_share(self, name: str, num_places: int) -> ClientShare:
        """Return the work of a client, the peers' included."""
        work = self._work.get(name, ClientWork())
        return ClientShare(
            name=name,
            weight=work.weight,
            num_places=num_places,
            num_queued_tokens=self.queued_tokens.count(name),
            num_requests=work.num_requests,
            work=work.work,
        )

    def count_share(self, share: ClientShare, sign: int) -> None:
        """Count the work of a peer's client, or take it away."""
        self.queued_tokens.change(share.name, sign * share.num_queued_tokens)
        work = self._work.setdefault(share.name, ClientWork())
        work.weight = share.weight
        work.num_requests += sign * share.num_requests
        work.work += sign * share.work
        if not work.num_requests:
            del self._work[share.name]

    def predict(
        self, rates: StepRates, num_tokens: int, client: Client
    ) -> Forecast | None:
        """Forecast the time of a request that comes now.

        Other requests of its client take turns with it, and so do other clients.

        Args:
          num_tokens: tokens of its texts.

        Returns:
          None if too few steps were measured, or if no other request is open.
        """
        if rates.num_steps < MIN_STEPS or not self._work:
            return None
        own = self._work.get(client.name, ClientWork())
        before = min(own.work, float(own.num_requests * num_tokens))
        before += sum(
            part * other.work
            for other, part in list_parts(self._work, client, before + num_tokens)
        )
        alone = rates.fixed + rates.token * num_tokens
        total = alone + rates.token * before
        # A request has no answer before all its texts were read.
        return Forecast(queue=0.0, first=-math.inf, total=total, alone=alone)

    def _change(self, client: str, num_tokens: int) -> None:
        self.queued_tokens.change(client, num_tokens)
        self._work[client].work += num_tokens
