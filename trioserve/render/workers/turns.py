"""The order in which work runs: short work first, but no work waits for ever.

Work is sorted into classes by its expected time. Each class takes work of up to four
times the time of the class before. Within a class the order is first come, first
served. The classes with waiting work share the time evenly, and work in an empty class
begins at once. So:

* Short work waits for work that runs, but not for long work that waits.
* Long work gets its share of the time even if short work never ends.

A single queue with the shortest work first, and a bonus for long waits, would be worse:
after a burst of long work had waited long enough, it would be ahead of all later work.

If several pieces of work may run at once, long work leaves one place to shorter work.

Source: Goyal, Vin and Cheng 1996, "Start-time fair queuing".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ...observe import Owner, find_owner, find_owner_of

# The most seconds that work of each class takes; one more class has longer work.
_BOUNDS = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024)

# All work counts as at least so long. To wake a thread up takes a tenth of it.
_LEAST_SECONDS = 0.001

# Work of this class and longer ones is long: others notice that they wait for it.
_FIRST_LONG = 4


class RenderTurn:
    """A piece of work that waits for its turn, or runs.

    Attributes:
      seconds: the time that it is expected to take.
      is_long: it must leave a place to shorter work.
      begun: is set when its turn comes.
      owner: the request that it belongs to.
    """

    __slots__ = ("begun", "index", "is_long", "owner", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, _LEAST_SECONDS)
        self.index = bisect_left(_BOUNDS, self.seconds)
        self.is_long = self.index >= _FIRST_LONG
        self.begun = trio.Event()
        self.owner = find_owner()


class _Class:
    """The waiting turns of one class, in the order of their arrival.

    Attributes:
      begin: the virtual time, common to all classes, at which the first turn begins.
    """

    def __init__(self) -> None:
        self.turns: OrderedDict[RenderTurn, None] = OrderedDict()
        self.begin = 0.0


class TurnQueue:
    """The waiting turns of all classes.

    It reads no clock. Its virtual time advances by the expected times of begun work.
    """

    def __init__(self) -> None:
        self._classes = [_Class() for _ in range(len(_BOUNDS) + 1)]
        self._now = 0.0

    def __len__(self) -> int:
        return sum(len(each.turns) for each in self._classes)

    def __iter__(self) -> Iterator[RenderTurn]:
        for each in self._classes:
            yield from each.turns

    def add(self, seconds: float) -> RenderTurn:
        """Add work that is expected to take so many seconds."""
        turn = RenderTurn(seconds)
        its_class = self._classes[turn.index]
        if not its_class.turns:
            # A class does not save up the time in which it had no work.
            its_class.begin = max(its_class.begin, self._now)
        its_class.turns[turn] = None
        return turn

    def pop(self, *, takes_long: bool) -> RenderTurn | None:
        """Remove and return the next turn, if any; a long one only if `takes_long`."""
        first = None
        for each in self._classes if takes_long else self._classes[:_FIRST_LONG]:
            # The first of equals is the class of shorter work.
            if each.turns and (first is None or each.begin < first.begin):
                first = each
        if first is None:
            return None
        turn, _ = first.turns.popitem(last=False)
        self._now = first.begin
        first.begin += turn.seconds
        return turn

    def discard(self, turn: RenderTurn) -> None:
        """Remove a turn that still waits."""
        del self._classes[turn.index].turns[turn]


class RenderTurns:
    """Assigns a limiter's tokens to work, in the order of TurnQueue.

    Args:
      limiter: bounds the work that runs at once; only this class takes its tokens.
    """

    def __init__(self, limiter: trio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._queue = TurnQueue()
        self._num_long = 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def list_waiting(self) -> list[RenderTurn]:
        return list(self._queue)

    def resize(self, total_tokens: int) -> None:
        """Change how much work may run at once."""
        self._limiter.total_tokens = total_tokens
        self._begin()

    @asynccontextmanager
    async def hold(self, seconds: float = 0.0) -> AsyncIterator[None]:
        """Wait for a turn, and hold it while the block runs.

        Args:
          seconds: the time that the block is expected to take.
        """
        turn = self._queue.add(seconds)
        self._begin()
        try:
            await turn.begun.wait()
            yield
        finally:
            if turn.begun.is_set():
                self._limiter.release_on_behalf_of(turn)
                self._num_long -= turn.is_long
            else:
                self._queue.discard(turn)
            self._begin()

    def _begin(self) -> None:
        """Begin work while there are free tokens."""
        while self._limiter.available_tokens > 0:
            # If there is only one place, long work may take it, too.
            num_places = max(1, self._limiter.total_tokens - 1)
            turn = self._queue.pop(takes_long=self._num_long < num_places)
            if turn is None:
                return
            self._limiter.acquire_on_behalf_of_nowait(turn)
            self._num_long += turn.is_long
            turn.begun.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Some workers of one kind, for reports to people.

    Args:
      name: of one of them, such as "renderer thread".
      limiter: has a token for each.
      list_waiting: returns the work that waits for one.
    """

    name: str
    limiter: trio.CapacityLimiter
    list_waiting: Callable[[], Iterable[object]] = tuple

    def locate(self, owner: Owner) -> str | None:
        """Return where the work of a request is; None if it is not here."""
        if _has_work_of(owner, self.limiter.statistics().borrowers):
            return self.name
        if _has_work_of(owner, self.list_waiting()):
            return f"queue for a {self.name}"
        return None


def _has_work_of(owner: Owner, things: Iterable[object]) -> bool:
    return any(find_owner_of(each) is owner for each in things)
