"""The part of prompts that the prefix cache has, as far as past prompts tell."""

from __future__ import annotations

# The weight of a prompt halves after 34 others, as an answer's weight does in backlog.py. In a
# simulation, with 0.9 a few more requests were late.
_KEPT = 0.98

# A client with less weight of past prompts counts as one without a cache.
_MIN_WEIGHT = 3.0

# Clients that are remembered: more than a file of keys has. Their names may change for ever.
_MAX_CLIENTS = 10_000


class _Prompts:
    """Sums over past prompts; old ones count less and less."""

    __slots__ = ("num_cached", "num_tokens", "weight")

    def __init__(self) -> None:
        self.weight = 0.0
        self.num_tokens = 0.0
        self.num_cached = 0.0

    def note(self, num_tokens: int, num_cached: int) -> None:
        self.weight = _KEPT * self.weight + 1
        self.num_tokens = _KEPT * self.num_tokens + num_tokens
        self.num_cached = _KEPT * self.num_cached + num_cached

    def estimate(self, num_tokens: float) -> int:
        if self.weight < _MIN_WEIGHT:
            return 0
        # Invariant: less than num_tokens, because the last token of a prompt is computed.
        return int(self.num_cached * min(1 / self.weight, num_tokens / self.num_tokens))


class CachedPrompts:
    """Estimates how many tokens of new prompts are cached."""

    def __init__(self) -> None:
        self._all = _Prompts()
        # The client whose prompt came last is the last one.
        self._clients: dict[str, _Prompts] = {}

    def note(self, client: str, num_tokens: int, num_cached: int) -> None:
        """Learn from a computed prompt of a client."""
        self._all.note(num_tokens, num_cached)
        prompts = self._clients.pop(client, None) or _Prompts()
        prompts.note(num_tokens, num_cached)
        self._clients[client] = prompts
        if len(self._clients) > _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def estimate(self, client: str, num_tokens: float) -> int:
        """Return the cached tokens of a client's next prompt.

        They are as many as in its past prompts on average, but no larger part of it than of
        these: the cache has the beginning of a prompt that is longer than usual, and a short
        one may have another beginning.
        """
        prompts = self._clients.get(client)
        return prompts.estimate(num_tokens) if prompts is not None else 0

    def estimate_usual(self, num_tokens: float) -> int:
        """Return the cached tokens of the next prompt of any client."""
        return self._all.estimate(num_tokens)
