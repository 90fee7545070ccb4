"""A lack of memory, which each library reports in its own way, as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import errno
import resource

from ..errors import NotEnoughMemory

# Messages of the system, its loader of libraries, torch and CUDA, in lower case. The classes
# of their errors do not help: RuntimeError and ImportError have other causes, too.
_WORDS = (
    "cannot allocate memory",
    "can't allocate memory",
    "failed to map segment from shared object",
    "out of memory",
)

# A limit of threads has this message, too. It is about memory if the process has a
# limit of memory.
_WORDS_IF_LIMITED = ("can't start new thread",)


@contextmanager
def telling_shortage() -> Iterator[None]:
    """Raise NotEnoughMemory in place of an error that comes from a lack of memory.

    Use it around all code that loads a model. It is also a decorator.

    Raises:
      NotEnoughMemory
    """
    try:
        yield
    except NotEnoughMemory:
        raise
    except Exception as error:
        limit = _find_limit()
        reason = _find_shortage(error, is_limited=limit is not None)
        if reason is None:
            raise
        raise NotEnoughMemory(reason, limit_bytes=limit) from error


def _find_shortage(error: BaseException | None, *, is_limited: bool) -> str | None:
    """Return the message of the first error of a chain that is about memory, if any.

    Args:
      error: the last of the chain.
    """
    words = _WORDS + _WORDS_IF_LIMITED if is_limited else _WORDS
    reason = None
    while error is not None:
        reason = _read_shortage(error, words) or reason
        error = error.__cause__ or error.__context__
    return reason


def _read_shortage(error: BaseException, words: tuple[str, ...]) -> str | None:
    """Return the line of an error that is about memory, or None."""
    # The system's errors have a number. The words may be part of a file's name in them.
    if isinstance(error, OSError) and error.errno is not None:
        return str(error) if error.errno == errno.ENOMEM else None
    for line in str(error).splitlines():
        if any(each in line.lower() for each in words):
            return line.strip()
    return type(error).__name__ if isinstance(error, MemoryError) else None


def _find_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit
