"""Parts of a prompt that a step computes whole: images whose tokens see each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Spans:
    """Spans of positions that no chunk and no prefix divides.

    Args:
      spans: (begin, end) positions, rising.

    Attributes:
      longest: tokens of the longest span; 0 without any.
    """

    __slots__ = ("longest", "_begins", "_ends")

    def __init__(self, spans: Sequence[tuple[int, int]] = ()) -> None:
        self._begins = [begin for begin, _ in spans]
        self._ends = [end for _, end in spans]
        self.longest = max((end - begin for begin, end in spans), default=0)

    def is_inside(self, position: int) -> bool:
        """Return whether a cut before a position would divide a span."""
        return self.step_back(position) < position

    def step_back(self, position: int) -> int:
        """Return the last position up to this one that is not inside a span."""
        index = self._find_next(position)
        inside = index < len(self._begins) and self._begins[index] < position
        return self._begins[index] if inside else position

    def step_on(self, position: int) -> int:
        """Return the first position from this one on that is not inside a span."""
        return (
            self._ends[self._find_next(position)]
            if self.is_inside(position)
            else position
        )

    def _find_next(self, position: int) -> int:
        """Return the index of the first span that ends behind a position."""
        return bisect_right(self._ends, position)


# Most prompts have none.
NO_SPANS = Spans()
