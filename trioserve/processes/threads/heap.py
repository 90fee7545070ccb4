"""Gives freed memory back to the operating system."""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from functools import partial


def find_malloc_trim() -> Callable[[], object] | None:
    """Return glibc's call that trims the heap; None with other libraries.

    glibc keeps freed memory that lies below a live object. A trim blocks the heap for other
    threads. ctypes releases the GIL during the call.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return partial(malloc_trim, ctypes.c_size_t(0))


def trim_heap() -> None:
    """Trim the heap, if the C library is glibc.

    After a load, 2 GB of 3.3 lay below live objects (1.4 billion weights in four bits).
    """
    malloc_trim = find_malloc_trim()
    if malloc_trim is not None:
        malloc_trim()
