"""Errors of requests that end before their time."""

from __future__ import annotations

from .base import TrioserveError


class RequestEnded(TrioserveError):
    """Raised when a request ends before its time, because its client wants that."""


class RequestCancelled(RequestEnded):
    """Raised when a request is cancelled by another one; nginx's status for it is 499."""

    status = 499
    code = "RequestCancelled"

    def __init__(self) -> None:
        super().__init__("The request was cancelled by DELETE /v1/requests.")


class DeadlineExceeded(RequestEnded):
    """Raised when a request has used up its time before its answer began."""

    status = 504
    code = "DeadlineExceeded"

    def __init__(self, *, seconds: float, phase: str, param: str | None = None) -> None:
        limit = f"{param}={seconds:g}" if param else f"its time limit of {seconds:g} s"
        super().__init__(
            f"The request was in its phase {phase!r} when {limit} had passed."
        )
        self.param = param
