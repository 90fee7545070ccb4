"""The search for patterns that the last tokens of a sequence repeat."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...types.repetition import RepetitionDetection

# Tokens of one look. More would need more memory, and save little time.
_MOST_AT_ONCE: Final = 64

# In the place of tokens before the first one.
_NO_TOKEN: Final = -1


class RepetitionDetector:
    """Tells when the last tokens of an output are one pattern, several times.

    The last tokens repeat a pattern of `size` tokens `count` times when each of the last
    size * (count - 1) tokens is equal to the one `size` places before it. So the detector
    remembers, for each size, the last token that differs from that one. The output cannot
    end before size * (count - 1) tokens more have come. Until then it looks at no token, and
    then at all new ones at once: an ordinary text takes less than a microsecond a token.

    Args:
      rule: looks for patterns.
    """

    __slots__ = ("_due", "_earliest", "_needed", "_next", "_num_seen", "_recent")

    def __init__(self, rule: RepetitionDetection) -> None:
        assert rule.is_on, "a detector looks for patterns"
        # All sizes, the longest first, as the tokens before a token stand.
        sizes = np.arange(rule.max_pattern_size, max(1, rule.min_pattern_size) - 1, -1)
        self._needed = sizes * (rule.min_count - 1)
        # The number of tokens with which each size ends the output, unless a token differs.
        # Invariant: these numbers only grow.
        self._due = self._needed.copy()
        self._recent = np.full(rule.max_pattern_size, _NO_TOKEN)
        self._num_seen = 0
        self._plan_look()

    def is_repeating(self, token_ids: Tokens[int]) -> bool:
        """Return whether an output repeats a pattern; called after each of its tokens."""
        if len(token_ids) < self._next:
            return False
        self._look(token_ids[self._num_seen :])
        self._plan_look()
        return self._earliest <= self._num_seen

    def _look(self, new: Tokens[int]) -> None:
        """Take in the tokens that have come since the last look."""
        row = np.concatenate((self._recent, new))
        before = sliding_window_view(row, len(self._recent))[:-1, : len(self._due)]
        differs = before != row[-len(new) :, None]  # (num_new, sizes)
        self._recent = row[len(new) :]
        self._num_seen += len(new)
        # The last token that differs, counted from 1.
        last = self._num_seen - np.argmax(differs[::-1], axis=0)
        np.copyto(self._due, last + self._needed, where=differs.any(axis=0))

    def _plan_look(self) -> None:
        now = self._num_seen
        # The number of tokens before which the output cannot end.
        self._earliest = int(self._due.min())
        self._next = min(max(self._earliest, now + 1), now + _MOST_AT_ONCE)
