"""The root of all errors, groups of them, and errors that are not a request's fault."""

from __future__ import annotations

from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


def find_first(errors: ExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error of a group and its nested groups: an answer has one."""
    error = errors.exceptions[0]
    return find_first(error) if isinstance(error, ExceptionGroup) else error


class TrioserveError(Exception):
    """The root of the tree; never raised itself.

    Attributes:
      status: of the answer, in HTTP.
      code: the family of the error, for clients.
      param: the field of the request that is wrong, if there is one.
    """

    status = 500
    code = "InternalServerError"
    param: str | None = None

    def __init_subclass__(cls, status: int | None = None, code: str | None = None):
        """Set what a family or a class has of its own; the rest is the base's."""
        cls.status = status or cls.status
        cls.code = code or cls.code


class RequestEnded(TrioserveError):
    """Raised when a request ends before its time, because its client wants that."""


class RequestCancelled(RequestEnded, status=499, code="RequestCancelled"):
    """Raised when a request is cancelled by another one; nginx's status for it is 499."""

    def __init__(self) -> None:
        super().__init__("The request was cancelled by DELETE /v1/requests.")


class DeadlineExceeded(RequestEnded, status=504, code="DeadlineExceeded"):
    """Raised when a request has used up its time before its answer began."""

    def __init__(self, *, seconds: float, phase: str, param: str | None = None) -> None:
        limit = f"{param}={seconds:g}" if param else f"its time limit of {seconds:g} s"
        super().__init__(
            f"The request was in its phase {phase!r} when {limit} had passed."
        )
        self.param = param


class InternalError(TrioserveError):
    """Raised in place of an unexpected error; the log has the cause."""

    def __init__(self) -> None:
        super().__init__("Internal server error.")


class EngineDied(TrioserveError):
    """Raised in every open request when the engine loop has failed."""

    def __init__(self) -> None:
        super().__init__("The engine failed.")


class EngineProcessDied(Exception):
    """Raised when the engine process has ended; the message says how.

    No request sees it: requests get EngineDied.
    """


class EngineStalled(TrioserveError, status=503):
    """Raised by GET /progressz when the engine makes no progress."""

    """Raised by GET /progressz when the engine makes no progress."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The engine made no progress for {seconds:.1f} seconds.")
