"""Standard output of a command."""

from __future__ import annotations

import os
import sys


def write_output(text: str) -> int:
    """Write to standard output, and return the exit code of a command that has done so.

    A reader such as `head` may stop before the end.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
