"""The line that a person sees while the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
import sys

_TEXT = "loading the model ..."


@contextmanager
def show_loading() -> Iterator[None]:
    """Show a line on standard error during the block, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown", "")
    sys.stderr.write(_TEXT + ("\n" if is_dumb else ""))
    sys.stderr.flush()
    try:
        yield
    finally:
        if not is_dumb:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
