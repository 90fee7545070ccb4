"""The number of tokens that a text will have, estimated from the texts before it."""

from __future__ import annotations

# The weight of a text halves after 34 others.
_KEPT = 0.98


class TextRatio:
    """Learns how many tokens a character makes, with the tokens of templates."""

    def __init__(self) -> None:
        self._num_characters = 0.0
        self._num_tokens = 0.0

    def learn(self, num_characters: int, num_tokens: int) -> None:
        """Take in a text, or all texts of a request."""
        self._num_characters = _KEPT * self._num_characters + num_characters
        self._num_tokens = _KEPT * self._num_tokens + num_tokens

    def estimate(self, num_characters: int) -> int:
        """Return the tokens that a text will have, about; 0 before the first text."""
        if not self._num_characters:
            return 0
        return round(num_characters * self._num_tokens / self._num_characters)
