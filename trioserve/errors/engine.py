"""Errors that are the server's own fault."""

from __future__ import annotations

from .base import TrioserveError


class InternalError(TrioserveError):
    """Raised in place of an unexpected error; the log has the cause."""

    def __init__(self) -> None:
        super().__init__("Internal server error.")


class EngineDied(TrioserveError):
    """Raised in every open request when the engine loop has failed."""

    def __init__(self) -> None:
        super().__init__("The engine failed; the server is stopping.")


class EngineProcessDied(Exception):
    """Raised when the engine process has ended; the message says how.

    No request sees it: requests get EngineDied.
    """


class EngineStalled(TrioserveError):
    """Raised by GET /progressz when the engine makes no progress."""

    status = 503

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The engine made no progress for {seconds:.1f} seconds.")
