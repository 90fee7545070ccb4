"""The use of each key and its limits: requests at once, and tokens per minute.

Tokens are paid afterwards: for a prompt when the engine takes it, for an answer
when they come. So a request is refused if earlier ones have used the tokens up, and its own
tokens make later ones wait. A key that was idle for a minute has the tokens of a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
import math
from typing import Final, NoReturn

import msgspec
import trio

from ...errors import KeyLimitReached
from ...types.admission import Pace
from .keys import Key
from .siblings import Siblings

# The key of all requests of a server without keys.
_NOBODY: Final = Key(name="")


class KeyUse:
    """The use of one key.

    Attributes:
      key: as it was when it was last shown; the file may have changed since.
      num_running: requests that are being answered.
      num_requests, num_tokens: all so far.
      refused: requests that were refused, by limit.

    Args:
      on_charge: is called when tokens of a limited key were counted.
    """

    def __init__(self, key: Key, on_charge: Callable[[], None] = lambda: None) -> None:
        self.key = key
        self._on_charge = on_charge
        self.num_running = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.refused: Counter[str] = Counter()
        self._pace = Pace()
        # Tokens that are left, and the time of that; less than 0 is a debt.
        self._left = math.inf
        self._now = 0.0

    def check(self) -> None:
        """Refuse a request beyond a limit.

        Raises:
          KeyLimitReached
        """
        key = self.key
        if key.max_requests is not None and self.num_running >= key.max_requests:
            self.refuse_place(key.max_requests)
        if key.tokens_per_minute is not None and self.count_left() <= 0:
            seconds = self.measure_reset(1)
            self._refuse("tokens_per_minute", key.tokens_per_minute, seconds)

    def refuse_place(self, limit: int) -> NoReturn:
        """Refuse a request because so many are being answered.

        Raises:
          KeyLimitReached
        """
        seconds = self._pace.estimate_seconds(trio.current_time(), 1)
        self._refuse("max_requests", limit, float(seconds))

    def charge(self, num_tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        self.num_tokens += num_tokens
        if self.key.tokens_per_minute is not None:
            self.charge_elsewhere(num_tokens)
            self._on_charge()

    def charge_elsewhere(self, num_tokens: int) -> None:
        """Take tokens that another HTTP process has counted."""
        self._left = self.count_left() - num_tokens

    def lower_left(self, left: float) -> None:
        """Leave no more tokens than other HTTP processes know of."""
        self._left = min(self.count_left(), left)

    @property
    def num_left(self) -> int:
        """The tokens that are left of the limit, for the client."""
        return max(0, int(self.count_left()))

    def count_left(self) -> float:
        """Return the tokens that are left now."""
        now, limit = trio.current_time(), self.key.tokens_per_minute
        if limit is None:
            return math.inf
        self._left = min(limit, self._left + limit / 60 * (now - self._now))
        self._now = now
        return self._left

    def measure_reset(self, num_tokens: float) -> float:
        """Return the seconds until so many tokens are left."""
        limit = self.key.tokens_per_minute
        assert limit is not None, "only a limit is reset"
        return max(0.0, (num_tokens - self.count_left()) * 60 / limit)

    def change(self, number: int) -> None:
        """Count requests that begin, or end if `number` is negative."""
        self.num_running += number
        self.num_requests += max(0, number)
        self._pace.observe(trio.current_time(), self.num_running)

    def _refuse(self, limit: str, number: int, seconds: float) -> NoReturn:
        self.refused[limit] += 1
        raise KeyLimitReached(
            self.key.name,
            limit=f"{limit}={number}",
            retry_after_seconds=max(1, math.ceil(seconds)),
        )


@dataclass(slots=True, eq=False)
class Ticket:
    """The part of one request in the use of its key.

    A request may outlive its connection, so several holders keep it running.

    Args:
      use: of the request's key.
    """

    use: KeyUse
    _num_holders: int = field(default=0, init=False)
    _siblings: Siblings | None = field(default=None, init=False)

    async def admit(self, siblings: Siblings | None) -> None:
        """Refuse the request if its key is at a limit.

        Args:
          siblings: the other HTTP processes, whose requests count, too. Those at once are
            counted by one process for all of them, which takes a message and its answer.

        Raises:
          KeyLimitReached
        """
        self.use.check()
        key = self.use.key
        if siblings is not None and key.max_requests is not None:
            if not await siblings.take_place(key.name, key.max_requests):
                self.use.refuse_place(key.max_requests)
            self._siblings = siblings

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count the request as running in the block.

        The last block to end gives back the place that `admit` took.
        """
        if not self._num_holders:
            self.use.change(1)
        self._num_holders += 1
        try:
            yield
        finally:
            self._num_holders -= 1
            if not self._num_holders:
                self.use.change(-1)
                if self._siblings is not None:
                    self._siblings.give_back_place(self.use.key.name)
                    self._siblings = None


class KeyTokens(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a key with a limit on them, as one HTTP process has counted them.

    Args:
      num_tokens: all that it has counted so far.
      left: tokens that are left, as far as it knows.
    """

    key: Key
    num_tokens: int
    left: float


class KeyUses:
    """The use of all keys that were shown, by name.

    Attributes:
      on_charge: is called when list_tokens has changed.
    """

    def __init__(self) -> None:
        self._nobody = KeyUse(_NOBODY)
        self._uses: dict[str, KeyUse] = {}
        self.on_charge: Callable[[], None] = lambda: None
        # The tokens that other HTTP processes have counted, by process and key.
        self._elsewhere: dict[int, dict[str, int]] = {}

    def find(self, key: Key | None) -> KeyUse:
        """Return the use of a key; None is everybody on a server without keys."""
        if key is None:
            return self._nobody
        # By name, because the file may have changed since.
        use = self._find(key)
        use.key = key
        return use

    def list_all(self) -> list[KeyUse]:
        """Return the use of each key, without the use of everybody."""
        return list(self._uses.values())

    def list_tokens(self) -> tuple[KeyTokens, ...]:
        """Return the tokens of the keys with a limit on them, for other HTTP processes."""
        return tuple(
            KeyTokens(use.key, use.num_tokens, use.count_left())
            for use in self._uses.values()
            if use.key.tokens_per_minute is not None
        )

    def take_tokens(self, number: int, rows: Iterable[KeyTokens]) -> None:
        """Count the tokens that another HTTP process has counted since the last call.

        This process may have begun later than that one. So before the first call, it takes
        the tokens that are left.
        """
        is_first = number not in self._elsewhere
        seen = self._elsewhere.setdefault(number, {})
        for row in rows:
            use = self._find(row.key)
            if is_first:
                use.lower_left(row.left)
            else:
                use.charge_elsewhere(row.num_tokens - seen.get(row.key.name, 0))
            seen[row.key.name] = row.num_tokens

    def forget(self, number: int) -> None:
        """Say that another HTTP process has ended."""
        self._elsewhere.pop(number, None)

    def _find(self, key: Key) -> KeyUse:
        use = self._uses.get(key.name)
        if use is None:
            use = self._uses[key.name] = KeyUse(key, lambda: self.on_charge())
        return use
