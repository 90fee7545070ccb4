"""Runs trio in virtual time, with an order of tasks that one seed decides.

This is the only module that uses private names of trio. Hypothesis does the same, by
trio's own hook for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
import gc
import random
from typing import Any, TypeVar

import trio
from trio._core import _run
from trio.testing import MockClock

T = TypeVar("T")

_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
_RANDOM = "_r"


def run_virtually(
    main: Callable[..., Awaitable[T]], *args: object, seed: int | str = 0
) -> T:
    """Run a trio program whose sleeps take no time; the same each time for one seed.

    The program must use neither sockets nor threads, because they take real time.

    Args:
      seed: decides in which order trio runs the tasks that can run at one moment.

    Raises:
      RuntimeError: this release of trio has other private names.
    """
    with _seeded(seed), _uncollected():
        clock = MockClock(autojump_threshold=0)
        return trio.run(main, *args, clock=clock)


@contextmanager
def _seeded(seed: int | str) -> Iterator[None]:
    source = check_names()
    before = getattr(_run, _SWITCH), source.getstate()
    setattr(_run, _SWITCH, True)
    source.seed(seed)
    try:
        yield
    finally:
        setattr(_run, _SWITCH, before[0])
        source.setstate(before[1])


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from running finalizers at some moment of the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_names(module: Any = _run) -> random.Random:
    """Return trio's source of random numbers.

    Raises:
      RuntimeError: this release of trio has other private names.
    """
    source = getattr(module, _RANDOM, None)
    switch = getattr(module, _SWITCH, None)
    if not isinstance(source, random.Random) or not isinstance(switch, bool):
        raise RuntimeError(
            f"trio {trio.__version__} has no {_RANDOM} and {_SWITCH} in {module.__name__}"
        )
    return source
