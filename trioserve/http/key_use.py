"""What each key uses, and the limits of that: requests at once, and tokens per minute.

Tokens are paid afterwards: those of a prompt when the engine takes it, and those of an answer
when they come. So a request is refused if earlier ones have used the tokens up, and its own
tokens make later ones wait. A key that was idle for a minute has the tokens of a minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
import math
from typing import Final

import trio

from ..errors import KeyLimitReached
from ..observe import Pace
from .key_file import Key

# The key of all requests of a server without keys.
_NOBODY: Final = Key(name="")


class KeyUse:
    """What one key uses.

    Attributes:
      key: as it was when it was last shown; the file may have changed since.
      num_running: requests that are being answered.
      num_requests, num_tokens: all so far.
      refused: requests that were refused, by limit.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
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
        now, key = trio.current_time(), self.key
        if key.max_requests is not None and self.num_running >= key.max_requests:
            seconds = float(self._pace.estimate_seconds(now, 1))
            self._refuse("max_requests", key.max_requests, seconds)
        if key.tokens_per_minute is not None and self.count_left() <= 0:
            seconds = self.measure_reset(1)
            self._refuse("tokens_per_minute", key.tokens_per_minute, seconds)

    def charge(self, num_tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        self.num_tokens += num_tokens
        if self.key.tokens_per_minute is not None:
            self._left = self.count_left() - num_tokens

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

    def _refuse(self, limit: str, number: int, seconds: float) -> None:
        self.refused[limit] += 1
        raise KeyLimitReached(
            self.key.name,
            limit=f"{limit}={number}",
            retry_after_seconds=max(1, math.ceil(seconds)),
        )


class Ticket:
    """The part of one request in the use of its key.

    A request may outlive its connection, so several holders keep it running.

    Args:
      use: of the request's key.
    """

    def __init__(self, use: KeyUse) -> None:
        self.use = use
        self._num_holders = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count the request as running in the block."""
        if not self._num_holders:
            self.use.change(1)
        self._num_holders += 1
        try:
            yield
        finally:
            self._num_holders -= 1
            if not self._num_holders:
                self.use.change(-1)


class KeyUses:
    """The use of all keys that were shown, by name."""

    def __init__(self) -> None:
        self._nobody = KeyUse(_NOBODY)
        self._uses: dict[str, KeyUse] = {}

    def find(self, key: Key | None) -> KeyUse:
        """Return the use of a key; None is everybody on a server without keys."""
        if key is None:
            return self._nobody
        # By name, because the file may have changed since.
        use = self._uses.setdefault(key.name, KeyUse(key))
        use.key = key
        return use

    def list_all(self) -> list[KeyUse]:
        """Return the use of each key, but not that of everybody."""
        return list(self._uses.values())
