"""Asks the server again and again, in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
import queue
import threading

from .client import Client, Details, Request, TopError


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The last look at the server.

    Args:
      details: of the request that is shown in full; empty if it has ended.
      error: why the last look failed.
      message: the result of the last cancel.
      engines: their states in words; empty for one that is awake.
    """

    requests: tuple[Request, ...] = ()
    engines: str = ""
    details: tuple[Details, ...] = ()
    error: str = ""
    message: str = ""


class Poller:
    """Looks at a server until the process ends.

    Attributes:
      seen: the last look; replaced as a whole, so that any thread may read it.
    """

    def __init__(
        self, client: Client, interval: float, requests: tuple[Request, ...]
    ) -> None:
        self.seen = Seen(requests=requests)
        self._client = client
        self._interval = interval
        self._shown: str | None = None
        self._jobs: queue.SimpleQueue[Callable[[], str] | None] = queue.SimpleQueue()

    def start(self) -> None:
        # The process does not wait for an answer when it ends.
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def show(self, request_id: str | None) -> None:
        """Also ask for the details of a request from now on; None for none."""
        self._shown = request_id
        self._jobs.put(None)

    def cancel(self, request_id: str) -> None:
        self._jobs.put(lambda: _tell_cancelled(self._client.cancel(request_id)))

    def cancel_all(self) -> None:
        self._jobs.put(lambda: _tell_cancelled(self._client.cancel_all()))

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._interval)
            except queue.Empty:
                job = None
            self._look(job)

    def _look(self, job: Callable[[], str] | None) -> None:
        message = self.seen.message
        try:
            if job is not None:
                message = job()
            requests = tuple(self._client.list_requests())
            # The list is new even if the next look fails.
            self.seen = replace(self.seen, requests=requests, message=message)
            engines = self._client.describe_engines()
            shown = self._shown
            details = () if shown is None else tuple(self._client.find_details(shown))
            self.seen = Seen(
                requests=requests,
                details=details,
                message=message,
                engines=engines,
            )
        except TopError as error:
            self.seen = replace(self.seen, error=str(error))


def _tell_cancelled(number: int) -> str:
    if number == 0:
        return "it has ended already"
    return f"cancelled {number} request{'' if number == 1 else 's'}"
