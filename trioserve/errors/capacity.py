"""Errors of a server that is full or stopping: the request may be sent again later."""

from __future__ import annotations

import math

from .base import TrioserveError


class Unavailable(TrioserveError, status=503, code="ServiceUnavailableError"):
    """Raised when the server works but cannot take this request now."""

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Unavailable, status=429, code="RateLimitError"):
    """Raised when the open requests leave too little room for another one.

    Args:
      what: the things that need room, in the plural: "sequences" or "texts".
      num_open: things of all open requests.
      num_possible: the most that one request may add now.
      num_new: things of the refused request.
    """

    def __init__(
        self,
        what: str,
        *,
        num_open: int,
        num_possible: int,
        num_new: int,
        retry_after_seconds: int,
    ) -> None:
        super().__init__(
            f"{num_open} {what} are already running or waiting. A request may add "
            f"{num_possible} now, and this one has {num_new}; please try again later.",
            retry_after_seconds=retry_after_seconds,
        )


class RendererFull(Unavailable, status=429, code="RateLimitError"):
    """Raised when too many requests, or too much text, wait for the renderer."""

    def __init__(self, *, num_requests: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{num_requests} requests are already waiting for the renderer; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )


class BackgroundFull(Unavailable, status=429, code="RateLimitError"):
    """Raised when too many responses are being generated in the background."""

    def __init__(self, *, num_running: int, retry_after_seconds: int) -> None:
        super().__init__(
            f"{num_running} responses are already being generated in the background; "
            "please try again later.",
            retry_after_seconds=retry_after_seconds,
        )


class KeyLimitReached(Unavailable, status=429, code="RateLimitError"):
    """Raised when a key has used up one of its limits.

    Args:
      limit: the limit and its value, as in the file with keys.
    """

    def __init__(self, name: str, *, limit: str, retry_after_seconds: int) -> None:
        super().__init__(
            f"The API key {name!r} has reached its limit ({limit}); please try again "
            "later.",
            retry_after_seconds=retry_after_seconds,
        )


class DeadlineUnreachable(Unavailable):
    """Raised when other requests would make a request late.

    The status is 503 and not 429: the client has not sent too much, and a load balancer
    tries another server after a 503.

    Args:
      param: the field or the option that limits the time.
      needed_seconds: the time that the request may need.
    """

    def __init__(
        self,
        param: str,
        *,
        needed_seconds: float,
        left_seconds: float,
        retry_after_seconds: int,
    ) -> None:
        super().__init__(
            f"{param}: because of other requests, this one may need "
            f"{needed_seconds:.1f} s, and it has {left_seconds:.1f} s left; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )
        self.param = param


class RendererStuck(Unavailable):
    """Raised when endless templates or images hold too many threads."""

    def __init__(self) -> None:
        # The server cannot estimate when such a thread ends.
        super().__init__(
            "Too many templates or images exceed their time limit; please try again "
            "later.",
            retry_after_seconds=10,
        )


class MemoryFull(Unavailable):
    """Raised when requests use all the memory for one purpose.

    Args:
      what: the content of that memory, in the plural, such as "images".
    """

    def __init__(self, what: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(
            f"The {what} of other requests use all the memory for {what}; please try "
            "again later.",
            retry_after_seconds=retry_after_seconds,
        )


class DescriptorsFull(Unavailable):
    """Raised when there is no room for a connection, or no descriptor for a request."""

    def __init__(self) -> None:
        super().__init__(
            "The server has too many connections; please try again later.",
            retry_after_seconds=1,
        )


class ShuttingDown(Unavailable):
    """Raised when a request comes after the server has begun to stop."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", retry_after_seconds=10)


class ModelLoading(Unavailable):
    """Raised when a request comes before the model is loaded.

    With several models, when the time of a request, or its time in queues, is over before its
    model is loaded.
    """

    def __init__(self) -> None:
        super().__init__("The model is being loaded.", retry_after_seconds=10)


class ModelFailed(Unavailable):
    """Raised when one of several models cannot be loaded, or its engine has failed."""

    def __init__(self, name: str, reason: str, *, retry_after_seconds: float) -> None:
        super().__init__(
            f"The model `{name}` is not available: {reason}",
            retry_after_seconds=math.ceil(retry_after_seconds),
        )


class EngineRestarting(Unavailable):
    """Raised when the engine has failed and is being started again."""

    def __init__(self) -> None:
        super().__init__(
            "The engine failed and is being started again.", retry_after_seconds=10
        )


class EngineAsleep(Unavailable):
    """Raised when an operator has ordered the engine to sleep, or when it could not wake.

    Args:
      failure: the reason why it could not wake.
    """

    def __init__(self, failure: str = "") -> None:
        reason = (
            "is asleep by order of an operator, until POST /wake_up "
            "(of several models, with ?model=NAME)."
        )
        if failure:
            reason = f"is asleep, and could not wake: {failure}"
        super().__init__(f"The engine {reason}", retry_after_seconds=10)
