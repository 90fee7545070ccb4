"""The two ways in which a grammar cannot be used: the client's fault, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import logging

from ..errors import TrioserveError

logger = logging.getLogger(__name__)


class GrammarError(Exception):
    """Raised when a client's grammar cannot be used: the message is for the client."""


class LibraryFailed(Exception):
    """Raised when the library fails; the log has the cause."""


@contextmanager
def raising_library_failures() -> Iterator[None]:
    """Turn an unexpected error of the library in the block into LibraryFailed."""
    try:
        yield
    except (GrammarError, LibraryFailed, TrioserveError):
        raise
    # A panic of the library is not an Exception. Nothing can be cancelled in these threads.
    except BaseException as error:
        logger.error("llguidance failed", exc_info=error)
        raise LibraryFailed(type(error).__name__) from error  # noqa: ASYNC104


def check_panic(message: str) -> None:
    """Raise LibraryFailed if a message of the library reports a panic of its own."""
    if "panic" in message[:200]:
        logger.error("llguidance failed: %s", message)
        raise LibraryFailed("panic")
