"""A StartupError as a message from a child process."""

from __future__ import annotations

import msgspec

from ..errors import StartupError


class NotLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A StartupError as the name of its class and its message."""

    kind: str
    reason: str

    @classmethod
    def of(cls, error: StartupError) -> NotLoaded:
        return cls(kind=type(error).__name__, reason=str(error))

    def restore(self) -> StartupError:
        """Return the error."""
        [kind] = [
            each for each in StartupError.__subclasses__() if each.__name__ == self.kind
        ]
        # Not through __init__, which takes facts: they are part of the message already.
        return kind.__new__(kind, self.reason)
