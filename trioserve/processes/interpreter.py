"""Settings of the interpreter in a process that only serves.

They are global, so programs that embed an engine are left alone.
"""

from __future__ import annotations

import gc
import sys

import trio


def prepare_interpreter() -> None:
    """Prepare the interpreter before a model is imported and loaded."""
    # With the default of 5 ms a thread in pure Python delays the event loop seven times
    # as long.
    sys.setswitchinterval(0.0005)
    # The collector would repeatedly search objects that live as long as the process.
    # That takes a seventh of the start.
    gc.disable()


def keep_imports() -> None:
    """Let later collections pass over all objects that there are now, which modules made.

    Few of them are garbage, and settle_interpreter would take a tenth of a second to find these
    while clients wait.
    """
    gc.freeze()


async def settle_interpreter() -> None:
    """Settle the interpreter once everything is loaded, before the first request."""
    # It takes a third of a second. In this thread it would be the longest stall.
    await trio.to_thread.run_sync(gc.collect)
    # A collection of torch's and transformers' objects would stall the loop for half a
    # second. The interpreter makes one more at its end.
    gc.freeze()
    # A pass over all other objects takes some milliseconds for each 64 streams, and finds
    # next to nothing: the objects of a request are free when its connection ends
    # (tests/http/connection/test_garbage.py). So such a pass is ten times rarer than by default.
    gc.set_threshold(700, 10, 100)
    gc.enable()


def collect_settled() -> None:
    """Free the objects that are gone, also those from before settle_interpreter; blocking.

    The model is one of them after a sleep: its modules refer to each other in circles.
    """
    is_settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_settled:
        gc.freeze()


def settle_again() -> None:
    """Settle the objects of a model that was loaded again, if the interpreter was settled."""
    if gc.get_freeze_count() > 0:
        gc.freeze()
