"""Finds stop strings in text that arrives piece by piece.

The stop string that is complete first ends the text, as if the model wrote one
character at a time. If two are complete at the same character, the longer one wins. So
the result never depends on the pieces.

Text that may be the beginning of a stop string is held back until the next characters
decide. Every search starts in this held text, so its cost does not grow with the text.

Each string is searched for on its own with str.find. An Aho-Corasick automaton finds
all of them at once, but was not worth its lines. Measured in CPU time, for tokens of 4
characters:

                                            str.find          automaton
    2 to 4 strings                          1.3 to 1.7 us     1.1 to 1.3 us
    32 strings of about 6 characters        2 to 4 us         1.1 to 1.8 us
    worst text and strings that were found  18 us             1.9 us
    preparation, 4096 characters in all     0.03 ms           1 to 17 ms

The preparation, once for each request, runs on the event loop, too.
"""

from __future__ import annotations

# Of all strings together. Bounds the worst cost of one token on the event loop; see the table
# above.
MAX_STOP_CHARACTERS = 4096


class StopScanner:
    """Looks for stop strings in one text.

    Args:
      stop: the strings that end the text; there may be none, and none is empty.
      include: whether the released text includes the stop string that ended it.

    Attributes:
      stop: the string that ended the text; None before the end.
    """

    __slots__ = ("_by_first", "_held", "_include", "_longest", "_stop", "stop")

    def __init__(self, stop: tuple[str, ...], *, include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._longest = max(map(len, stop), default=0)
        self._by_first: dict[str, list[str]] = {}
        for string in stop:
            self._by_first.setdefault(string[0], []).append(string)
        self._held = ""
        self.stop: str | None = None

    @property
    def num_held(self) -> int:
        """The number of characters that are held back."""
        return len(self._held)

    def scan(self, text: str, *, armed: bool = True) -> str:
        """Take the next piece of the text, and release all that is safe to show.

        Args:
          armed: whether a stop string that becomes complete in this piece ends the
            text. If not, it is ordinary text; a string may begin here and end in a
            later piece.

        Returns:
          The text that was not released before, without an end that may be the
          beginning of a stop string. After a match: the rest of the text up to the stop
          string.
        """
        if not self._held and self._by_first.keys().isdisjoint(text):
            return text
        seen = self._held + text
        if armed and (match := self._find_first(seen, text)) is not None:
            return self._end(seen, *match)
        begin = self._find_beginning(seen)
        self._held = seen[begin:]
        return seen[:begin]

    def release(self) -> str:
        """Return the held text, because no more text follows."""
        held, self._held = self._held, ""
        return held

    def _find_first(self, seen: str, text: str) -> tuple[int, str] | None:
        """Return the stop string that `text` completes first, and its end in `seen`."""
        matches = []
        for string in self._stop:
            # Skips most searches.
            if string[-1] not in text:
                continue
            # A match must end inside `text`, behind the held part.
            begin = seen.find(string, max(0, len(self._held) + 1 - len(string)))
            if begin >= 0:
                end = begin + len(string)
                matches.append((end, -len(string), string))
        if not matches:
            return None
        end, _, string = min(matches)
        return end, string

    def _find_beginning(self, seen: str) -> int:
        """Return the start of the longest end of `seen` that begins a stop string.

        A start that fails here is not tried again with the next piece. So all pieces
        together try each character of the text once, and the held start once more.
        """
        for begin in range(max(0, len(seen) - self._longest), len(seen)):
            end = seen[begin:]
            for string in self._by_first.get(seen[begin], ()):
                if string.startswith(end) and string != end:
                    return begin
        return len(seen)

    def _end(self, seen: str, end: int, stop: str) -> str:
        self.stop = stop
        self._held = ""
        return seen[: end if self._include else end - len(stop)]
