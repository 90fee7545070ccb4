"""Work in a thread that ends early if its result is no longer needed.

A thread cannot be ended from outside, so the work checks a flag now and then. fresh_thread.py
sets the flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import sys
import threading
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """Raised in work whose result is no longer needed.

    It is not an Exception, so that code that reports broken files as errors lets it pass.
    """


class _Current(threading.local):
    """The flag of the work that this thread does."""

    flag: threading.Event | None = None


_current = _Current()


@contextmanager
def stopped_by(flag: threading.Event) -> Iterator[None]:
    """Let check_stopped raise in the block, in this thread, once the flag is set."""
    _current.flag = flag
    try:
        yield
    finally:
        _current.flag = None


def check_stopped() -> None:
    """Check whether the result of this thread's work is still needed; cheap.

    Raises:
      Stopped: it is not needed. This is never raised while a module is imported,
        because many modules (torch's among them) cannot be imported again after half an
        import.
    """
    flag = _current.flag
    if flag is not None and flag.is_set() and not _is_importing(sys._getframe()):
        raise Stopped()


@contextmanager
def checking_torch_calls() -> Iterator[None]:
    """Check at each call of torch that this thread makes in the block.

    Libraries load a model for minutes without a callback, but for each tensor they call
    torch. A load of 30 layers makes 10,000 calls, and each costs 1.6 us more.
    """
    # Imported here because it takes seconds, and some work does without it.
    from torch.overrides import TorchFunctionMode

    class Checks(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., Any],
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            # Reading an attribute is not a check. transformers reads some between the start
            # of its threads and the try statement that ends them.
            if getattr(function, "__name__", None) != "__get__":
                check_stopped()
            return function(*args, **(kwargs or {}))

    with Checks():
        yield


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
