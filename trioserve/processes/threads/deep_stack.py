"""A thread with a large stack, for native code that calls itself for each level of its input.

Native code that runs out of stack ends the whole process: nothing can catch that.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread, stack_size
from typing import Final, TypeVar

import outcome

T = TypeVar("T")

# Addresses, not memory: the system gives memory to the pages that are used.
_STACK_BYTES: Final = 512 * 2**20

# The size is a setting of the process, which each new thread reads.
_starting: Final = Lock()


def run_with_deep_stack(work: Callable[[], T]) -> T:
    """Call a function in a new thread with a large stack, and wait for its result."""
    results: list[outcome.Outcome[T]] = []
    thread = Thread(
        target=lambda: results.append(outcome.capture(work)),
        name="deep stack",
        daemon=True,
    )
    with _starting:
        usual = stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            stack_size(usual)
    thread.join()
    return results[0].unwrap()
