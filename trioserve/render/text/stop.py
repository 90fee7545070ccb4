"""Stop strings, found in text that arrives piece by piece.

All strings are matched at once by one automaton (Aho and Corasick 1975, "Efficient
string matching"): each character is looked at once, however many stop strings there
are and however long the text is already. The automaton's depth is also the number of
characters that might still become a stop string: those are held back, no others.

Of several stop strings the one that is complete first ends the text, as it would if
the model wrote one character at a time; of those that are complete at the same
character it is the longest. So how the text was cut into pieces never matters.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from ...errors import InvalidParameter

# An automaton holds a state for each character: this bounds the milliseconds that
# one request's strings take on the event loop (about one microsecond a character).
MAX_STOP_CHARACTERS = 4096


class _State:
    """The longest beginning of a stop string that the text ends in."""

    __slots__ = ("depth", "fail", "next", "stop")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: dict[str, _State] = {}
        # The longest shorter beginning that the same text ends in; the root's is itself.
        self.fail: _State = self
        # The longest stop string that the text ends in here.
        self.stop: str | None = None

    def follow(self, character: str) -> _State:
        state = self
        while character not in state.next and state.depth:
            state = state.fail
        return state.next.get(character, state)

    def drop_complete(self) -> _State:
        """The longest beginning that can still grow into a stop string."""
        state = self
        while not state.next and state.depth:
            state = state.fail
        return state


def check_stop_strings(stop: tuple[str, ...]) -> None:
    """Refuse what cannot end a text.

    Raises:
      InvalidParameter: an empty string, or more than MAX_STOP_CHARACTERS in all.
    """
    if "" in stop:
        raise InvalidParameter("stop", "must not hold an empty string")
    if sum(map(len, stop)) > MAX_STOP_CHARACTERS:
        raise InvalidParameter(
            "stop", f"at most {MAX_STOP_CHARACTERS} characters in all are taken"
        )


# The n sequences of a request share one automaton, and so do requests that name the
# same strings. 16 of the largest take about 20 MB.
@lru_cache(maxsize=16)
def _build_automaton(stop: tuple[str, ...]) -> _State:
    root = _State(0)
    for string in stop:
        state = root
        for character in string:
            state = state.next.setdefault(character, _State(state.depth + 1))
        state.stop = string
    _link(root)
    return root


def _link(root: _State) -> None:
    # Breadth first, because a state's fail link is shorter than the state.
    states = deque([root])
    while states:
        state = states.popleft()
        for character, longer in state.next.items():
            longer.fail = state.fail.follow(character) if state.depth else root
            longer.stop = longer.stop or longer.fail.stop
            states.append(longer)


class StopScanner:
    """Looks for stop strings in one text.

    Args:
      stop: strings that end the text; none are fine.
      include: the text that is released holds the stop string that ended it.

    Attributes:
      stop: the string that ended the text, once one did.
    """

    __slots__ = ("_first_characters", "_held", "_include", "_root", "_state", "stop")

    def __init__(self, stop: tuple[str, ...], *, include: bool = False) -> None:
        check_stop_strings(stop)
        self._root = _build_automaton(stop)
        self._first_characters = frozenset(self._root.next)
        self._include = include
        self._state = self._root
        self._held = ""
        self.stop: str | None = None

    @property
    def num_held(self) -> int:
        """Characters that were taken and are not released yet."""
        return len(self._held)

    def scan(self, text: str, *, armed: bool = True) -> str:
        """Take the next piece of the text and release what is safe to show.

        Args:
          armed: a stop string that is complete within this piece ends the text;
            without, it is ordinary text (but a string may begin here and end later).

        Returns:
          All text so far that was not released yet, less an end that could be the
          beginning of a stop string. After a match: the rest up to it.
        """
        if self._state is self._root and self._first_characters.isdisjoint(text):
            return text
        seen = self._held + text
        state = self._state
        for end, character in enumerate(text, len(self._held) + 1):
            state = state.follow(character)
            if armed and state.stop is not None:
                return self._end(seen[:end], state.stop)
        return self._hold(seen, state.drop_complete())

    def release(self) -> str:
        """The text ends here: give what was held back."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _hold(self, seen: str, state: _State) -> str:
        self._state = state
        cut = len(seen) - state.depth
        self._held = seen[cut:]
        return seen[:cut]

    def _end(self, seen: str, stop: str) -> str:
        self.stop = stop
        self._held = ""
        return seen if self._include else seen[: len(seen) - len(stop)]
