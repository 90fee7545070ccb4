"""Whose turn it is to work: short work goes before long work, and nobody waits for ever.

Work is sorted into classes by the time that it is expected to take, each up to four times
that of the one before. In a class who came first goes first. The classes that have work
waiting share the time evenly, and one that had none begins at once:

* Short work waits for what has begun, and not for the long work that waits.
* Long work has its share of the time, however much short work comes.

Were all work in one line, with the shortest first until others had waited for too long,
then a burst of long work would be ahead of all that came later, once it had waited.

Where several may work at once, long work leaves a place to others.

Source: Goyal, Vin and Cheng 1996, "Start-time fair queuing".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

# Seconds that work of each class takes at most; there is one more for all else.
_BOUNDS = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024)

# What work counts at least: to wake a thread up takes a tenth of it.
_LEAST_SECONDS = 0.001

# Who waits for work of this class or a longer one notices it.
_FIRST_LONG = 4


class Turn:
    """A piece of work that waits for its turn, or has it.

    Attributes:
      seconds: that it is expected to take.
      begun: set when its turn has come.
    """

    __slots__ = ("begun", "index", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, _LEAST_SECONDS)
        self.index = bisect_left(_BOUNDS, self.seconds)
        self.begun = trio.Event()

    @property
    def is_long(self) -> bool:
        """Whether it leaves a place to shorter work."""
        return self.index >= _FIRST_LONG


class _Class:
    """Turns that wait, in the order in which they came.

    Attributes:
      begin: the time, as shared by the classes, at which the first of them begins.
    """

    def __init__(self) -> None:
        self.turns: OrderedDict[Turn, None] = OrderedDict()
        self.begin = 0.0


class TurnQueue:
    """Turns that wait. It knows no clock: its time is that of the work it lets begin."""

    def __init__(self) -> None:
        self._classes = [_Class() for _ in range(len(_BOUNDS) + 1)]
        self._now = 0.0

    def __len__(self) -> int:
        return sum(len(each.turns) for each in self._classes)

    def add(self, seconds: float) -> Turn:
        """Let work wait that is expected to take so many seconds."""
        turn = Turn(seconds)
        its_class = self._classes[turn.index]
        if not its_class.turns:
            # Nobody saves time up by not using it.
            its_class.begin = max(its_class.begin, self._now)
        its_class.turns[turn] = None
        return turn

    def pop(self, *, takes_long: bool) -> Turn | None:
        """Take the next one out, if there is any; a long one only where it may be."""
        classes = self._classes if takes_long else self._classes[:_FIRST_LONG]
        waiting = [each for each in classes if each.turns]
        if not waiting:
            return None
        # Among equals the shorter.
        first = min(waiting, key=lambda each: each.begin)
        turn, _ = first.turns.popitem(last=False)
        self._now = first.begin
        first.begin += turn.seconds
        return turn

    def discard(self, turn: Turn) -> None:
        """Forget one that still waits."""
        del self._classes[turn.index].turns[turn]


class Turns:
    """Gives a limiter's tokens to work, in its order.

    Args:
      limiter: says how much work is done at once; nobody else takes its tokens.
    """

    def __init__(self, limiter: trio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._queue = TurnQueue()
        self._num_long = 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def resize(self, total_tokens: int) -> None:
        """Let so much work be done at once from now on."""
        self._limiter.total_tokens = total_tokens
        self._begin()

    @asynccontextmanager
    async def hold(self, seconds: float = 0.0) -> AsyncIterator[None]:
        """Wait for a turn and have it in the block.

        Args:
          seconds: that the block is expected to take.
        """
        turn = self._queue.add(seconds)
        self._begin()
        try:
            await turn.begun.wait()
            yield
        finally:
            self._leave(turn)
            self._begin()

    def _begin(self) -> None:
        """Let work begin for which there is a token."""
        while self._limiter.available_tokens > 0:
            # With one place in all, it is long work's too.
            num_places = max(1, self._limiter.total_tokens - 1)
            turn = self._queue.pop(takes_long=self._num_long < num_places)
            if turn is None:
                return
            self._limiter.acquire_on_behalf_of_nowait(turn)
            self._num_long += turn.is_long
            turn.begun.set()

    def _leave(self, turn: Turn) -> None:
        if not turn.begun.is_set():
            self._queue.discard(turn)
            return
        self._limiter.release_on_behalf_of(turn)
        self._num_long -= turn.is_long
