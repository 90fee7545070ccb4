"""Lines at the bottom of the terminal that may still change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import TextIO

# The lines that are kept free, for the cursor and for a terminal that wraps one line.
_MARGIN = 2


class LiveLines:
    """Draws lines in place of the last ones; equal lines are not written again.

    Lines that do not fit the terminal can be written, but not changed later.

    Args:
      find_height: returns the number of the terminal's lines.
    """

    def __init__(self, file: TextIO, find_height: Callable[[], int]) -> None:
        self._file = file
        self._find_height = find_height
        # The lines that can be changed, and the number of lines above them.
        self._lines: list[str] = []
        self._num_gone = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines in place of the lines since the last call of `settle`.

        Args:
          lines: each fits the width of the terminal, and has no line end.
        """
        visible = [*lines[self._num_gone :]]
        num_same = len(commonprefix([self._lines, visible]))
        parts = []
        if num_old := len(self._lines) - num_same:
            # Up to the first line that is another one, and clear all below.
            parts.append(f"\x1b[{num_old}A\r\x1b[J")
        parts += [f"{line}\n" for line in visible[num_same:]]
        if parts:
            # At once, so that the terminal shows no state in between.
            self._file.write("".join(parts))
            self._file.flush()
        num_kept = max(1, self._find_height() - _MARGIN)
        self._num_gone += max(0, len(visible) - num_kept)
        self._lines = visible[-num_kept:]

    def settle(self, lines: Sequence[str]) -> None:
        """Show lines for the last time; the next ones come below them."""
        self.draw(lines)
        self._lines, self._num_gone = [], 0
