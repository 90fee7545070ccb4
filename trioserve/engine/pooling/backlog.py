"""The texts that wait to be read, and forecasts of the time until a request's are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import math

from ...scheduler.step_cost import StepRates
from ...types.client import Client
from ..backlog import MIN_STEPS, ClientBacklog, ClientWork, Forecast, list_parts
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


class PoolingBacklog(ClientBacklog):
    """Counts the texts of open requests, also the peers' texts.

    Attributes:
      places: texts that open requests have announced.
      queued_tokens: tokens of all texts that the device has not read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[JobId, tuple[Client, int]] = {}

    def statistics(self) -> PoolingBacklogStatistics:
        """Return the present state."""
        return PoolingBacklogStatistics(
            num_tokens=self.queued_tokens.total,
            num_jobs=len(self._jobs),
            num_clients=len(self._queues),
        )

    @contextmanager
    def hold(self, client: Client, num_texts: int) -> Iterator[None]:
        """Count a request of a client as open in the block."""
        self._change_places(client, num_texts)
        self._change_queue(client, num_requests=1)
        try:
            yield
        finally:
            self._change_queue(client, num_requests=-1)
            self._change_places(client, -num_texts)

    def add(self, job: JobId, num_tokens: int, client: Client) -> None:
        """Count a text of an open request."""
        self._jobs[job] = client, num_tokens
        self._change_tokens(client, num_tokens)

    def drop(self, job: JobId) -> None:
        """Remove a text."""
        client, num_tokens = self._jobs.pop(job)
        self._change_tokens(client, -num_tokens)

    def clear(self) -> None:
        """Remove all texts."""
        for job in list(self._jobs):
            self.drop(job)

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
        if rates.num_steps < MIN_STEPS or not self._queues:
            return None
        own = self._queues.get(client.name, ClientWork())
        before = min(own.work, float(own.num_requests * num_tokens))
        before += sum(
            part * other.work
            for other, part in list_parts(self._queues, client, before + num_tokens)
        )
        alone = rates.fixed + rates.token * num_tokens
        total = alone + rates.token * before
        # A request has no answer before all its texts were read.
        return Forecast(queue=0.0, first=-math.inf, total=total, alone=alone)

    def _change_tokens(self, client: Client, number: int) -> None:
        self._change_queue(client, num_queued_tokens=number, work=number)
