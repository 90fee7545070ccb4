"""The responses that the server keeps for later requests, in memory.

The store has no clock: callers pass the time, as trio.current_time() gives it. All of it
runs in the event loop's thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
import logging
from typing import Literal, Protocol

from ...errors import ResponseNotFound, ResponseTooLarge
from ...types.admission import ClientHoldings
from ..keys.keys import Key, may_see
from .event_log import EventLog

logger = logging.getLogger(__name__)

# About the memory of the objects around the bytes of a response or a turn.
_OBJECT_BYTES = 1024

DropReason = Literal["age", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTurn:
    """The items that one response added to a conversation.

    Responses that continue it share the object, so the store counts its bytes once for each
    client.

    Attributes:
      input, output: items as JSON arrays.
    """

    input: bytes
    output: bytes

    @property
    def num_bytes(self) -> int:
        return _OBJECT_BYTES + len(self.input) + len(self.output)


class RunningResponse(Protocol):
    """A response that is being generated in the background."""

    def show(self) -> bytes:
        """Return its JSON as it is now."""

    def cancel(self) -> None: ...

    async def wait_ended(self) -> None:
        """Wait until the store has it as it ended, unless it was forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """One response.

    Attributes:
      owner: the name of the key that began it; None without keys.
      earlier: the turns before it, oldest first.
      turn: its own items; without output while it is running.
      content: its JSON; empty while it is running.
      can_continue: it ended with an answer, whole or cut off.
      is_background: it runs, or ran, in the background.
      log: the events of its stream, if it can be followed.
      running: the response while it is running; None when it has ended.
    """

    id: str
    owner: str | None = None
    earlier: tuple[StoredTurn, ...] = ()
    turn: StoredTurn
    content: bytes = b""
    can_continue: bool = False
    is_background: bool = False
    log: EventLog | None = None
    running: RunningResponse | None = None

    @property
    def client(self) -> str:
        """The name of its client, as ClientHoldings counts it."""
        return self.owner or ""

    @property
    def is_running(self) -> bool:
        return self.running is not None

    @property
    def turns(self) -> tuple[StoredTurn, ...]:
        return (*self.earlier, self.turn)

    @property
    def num_own_bytes(self) -> int:
        """The bytes that it shares with no other response."""
        num_events = 0 if self.log is None else self.log.num_bytes
        # A pointer for each turn.
        return _OBJECT_BYTES + len(self.content) + num_events + 8 * len(self.earlier)

    @property
    def num_bytes(self) -> int:
        return self.num_own_bytes + sum(turn.num_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """The present content of a store."""

    num_responses: int
    num_bytes: int


@dataclass(slots=True)
class _Kept:
    response: StoredResponse
    put_at: float
    num_own_bytes: int


class ResponseStore:
    """Keeps responses until they are too old, or until newer ones need their memory.

    Args:
      max_bytes: bytes of all responses together; clients share them as ClientHoldings says.
      max_age: seconds after the end of a response; 0 keeps none that has ended.

    Attributes:
      dropped: responses that were dropped, by reason, without responses deleted by a client.
    """

    def __init__(self, *, max_bytes: int, max_age: float) -> None:
        self._max_bytes = max_bytes
        self._max_age = max_age
        # Oldest first.
        self._kept: dict[str, _Kept] = {}
        # The ids of each client's, oldest first.
        self._ids: defaultdict[str, dict[str, None]] = defaultdict(dict)
        # The number of a client's responses with each turn. An administrator may continue
        # responses of others, and holds their turns, too.
        self._turns: Counter[tuple[str, StoredTurn]] = Counter()
        self._held = ClientHoldings()
        self.dropped: Counter[DropReason] = Counter({"age": 0, "memory": 0})

    @property
    def keeps_responses(self) -> bool:
        return self._max_age > 0

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            num_responses=len(self._kept), num_bytes=self._held.total
        )

    def check_size(
        self, response: StoredResponse, *, num_more_bytes: int = 0, param: str = "store"
    ) -> None:
        """Refuse a response that is larger than the whole store. Any thread may call it.

        Args:
          num_more_bytes: the length of its events that will still come.
          param: the field of the request that the error names.

        Raises:
          ResponseTooLarge: it would only drive out all others.
        """
        num_bytes = response.num_bytes + num_more_bytes
        if num_bytes > self._max_bytes:
            raise ResponseTooLarge(
                num_bytes=num_bytes, limit=self._max_bytes, param=param
            )

    def put(self, response: StoredResponse, now: float) -> None:
        """Keep a response, and drop old ones if there is no room for it.

        Raises:
          ResponseTooLarge: as check_size.
        """
        assert response.id not in self._kept, "ids are unique"
        self.check_size(response)
        client, num_bytes = response.client, response.num_own_bytes
        self._kept[response.id] = _Kept(response, now, num_bytes)
        self._ids[client][response.id] = None
        for turn in response.turns:
            if not self._turns[client, turn]:
                num_bytes += turn.num_bytes
            self._turns[client, turn] += 1
        self._held.change(client, num_bytes)
        self._make_room(now)

    def replace(self, response: StoredResponse, now: float) -> None:
        """Keep a response that has ended in the place of the running one.

        Does nothing if the running one was deleted or dropped.

        Raises:
          ResponseTooLarge: as check_size. The running one stays.
        """
        self.check_size(response)
        if response.id in self._kept:
            self._take_out(response.id)
            self.put(response, now)

    def count_events(self, response_id: str, now: float) -> None:
        """Count the bytes of a running response's new events."""
        if kept := self._kept.get(response_id):
            num_bytes = kept.response.num_own_bytes
            self._held.change(kept.response.client, num_bytes - kept.num_own_bytes)
            kept.num_own_bytes = num_bytes
            self._make_room(now)

    def find(
        self, response_id: str, now: float, asker: Key | None = None
    ) -> StoredResponse:
        """Return a response.

        Args:
          asker: the key of the client that wants it.

        Raises:
          ResponseNotFound: it does not exist, or belongs to another key.
        """
        self.drop_old(now)
        kept = self._kept.get(response_id)
        if kept is None or not may_see(asker, kept.response.owner):
            raise ResponseNotFound(response_id)
        return kept.response

    def remove(self, response_id: str, now: float, asker: Key | None = None) -> None:
        """Forget a response; one that is running is cancelled.

        Raises:
          ResponseNotFound: as find.
        """
        self.find(response_id, now, asker)
        self._end(response_id)

    def drop_old(self, now: float) -> None:
        """Drop responses whose time is over."""
        old = []
        # The responses stand in the order of their times.
        for response_id, kept in self._kept.items():
            if not kept.response.is_running:
                if now - kept.put_at < self._max_age:
                    break
                old.append(response_id)
        for response_id in old:
            self._drop(response_id, "age")

    def _make_room(self, now: float) -> None:
        self.drop_old(now)
        while self._held.total > self._max_bytes and self._kept:
            self._drop(self._find_oldest(self._held.find_largest()), "memory")

    def _find_oldest(self, client: str) -> str:
        """Return a client's oldest that has ended, or else the oldest that is running."""
        for response_id in self._ids[client]:
            if not self._kept[response_id].response.is_running:
                return response_id
        return next(iter(self._ids[client]))

    def _drop(self, response_id: str, reason: DropReason) -> None:
        self.dropped[reason] += 1
        if self._kept[response_id].response.is_running:
            logger.warning(
                "the response %s is cancelled: --max-responses-memory has no room for it",
                response_id,
            )
        self._end(response_id)

    def _end(self, response_id: str) -> None:
        _cancel(self._take_out(response_id))

    def _take_out(self, response_id: str) -> StoredResponse:
        kept = self._kept.pop(response_id)
        client, num_bytes = kept.response.client, kept.num_own_bytes
        del self._ids[client][response_id]
        if not self._ids[client]:
            del self._ids[client]
        for turn in kept.response.turns:
            self._turns[client, turn] -= 1
            if not self._turns[client, turn]:
                del self._turns[client, turn]
                num_bytes += turn.num_bytes
        self._held.change(client, -num_bytes)
        return kept.response


def _cancel(response: StoredResponse) -> None:
    if response.running is not None:
        response.running.cancel()
