"""Gives freed memory back to the operating system."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Trim the heap, if the C library is glibc.

    glibc keeps freed memory that lies below a live object. A trim blocks the heap for other
    threads, but not the GIL.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    malloc_trim(ctypes.c_size_t(0))
