"""How the interpreter is set where a process does nothing but serve.

For those who own their process: it is global, so a library leaves it alone.
"""

from __future__ import annotations

import gc
import sys

import trio


def prepare_interpreter() -> None:
    """Set it before a model, and all that it needs, is imported and loaded."""
    # Waiting for the GIL is waiting: with the default of 5 ms a thread in pure Python
    # delays the loop seven times as long.
    sys.setswitchinterval(0.0005)
    # To look again and again through what grows, and will live as long as the process,
    # takes a seventh of the start.
    gc.disable()


async def settle_interpreter() -> None:
    """Set it once everything is loaded, before anybody is served."""
    # Takes a third of a second, which would be told for ever as the loop's longest stall.
    await trio.to_thread.run_sync(gc.collect)
    # A collection of torch's and transformers' objects would stall the loop for half a
    # second, and so would the one that the interpreter makes at its end.
    gc.freeze()
    gc.enable()
