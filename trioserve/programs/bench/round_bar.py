"""The bar that shows the rounds of a run."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from ...errors import make_line
from .generation.load import Load
from .generation.measure import Watch
from .measuring.measured_servers import Server

# The postfix is the round that runs now.
_FORMAT = "{n_fmt}/{total_fmt} rounds |{bar}| {elapsed}<{remaining}{postfix}"

# Seconds; a screen that changes more often costs the load generator time.
_SHORTEST_PAUSE = 0.2


class RoundBar(Watch):
    """A bar on standard error, if that is a terminal.

    Args:
      num_rounds: of all servers at all levels.
    """

    def __init__(self, load: Load, num_rounds: int) -> None:
        self._load = load
        self._num_answers = 0
        self._text = ""
        # A thread that wakes up a bar is not needed where each answer updates it.
        tqdm.monitor_interval = 0
        self._bar: Any = tqdm(
            total=num_rounds,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            bar_format=_FORMAT,
            dynamic_ncols=True,
            mininterval=_SHORTEST_PAUSE,
            # An update by 0 shows new answers, and the time.
            miniters=0,
        )
        self._bar.set_postfix_str("first requests")

    def begin(self, server: Server, level: float, turn: int) -> None:
        turns = f", round {turn + 1} of {self._load.rounds}"
        unit = "requests/s" if self._load.is_open else "clients"
        self._text = (
            f"{make_line(server.label)}, {level:g} {unit}"
            f"{turns if self._load.rounds > 1 else ''}"
        )
        self._num_answers = 0
        self._bar.set_postfix_str(self._text)

    def count_answer(self) -> None:
        self._num_answers += 1
        plural = "" if self._num_answers == 1 else "s"
        text = f"{self._text}: {self._num_answers} answer{plural}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(0)

    def end(self) -> None:
        self._bar.update()
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()
