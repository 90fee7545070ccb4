"""A request on its way to the simulated server, over some version of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import trio

from .plans import Leave
from .replies import Part

# How a write or a read ends when the server has closed the connection.
LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it is sent.

    Args:
      headers: without the ones that the version of HTTP adds itself.
      pieces: the number of parts in which it is sent, with pauses.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    pieces: int = 1


class Exchange(Protocol):
    """One request, and its answer."""

    async def run(self) -> None:
        """Send the request, and read its answer as far as it comes."""

    async def leave(self, how: Leave) -> None:
        """Give the request up; `run` has been cancelled."""

    async def half_close(self) -> None:
        """Say that nothing more will be sent; HTTP/1 alone."""


class Connection(Protocol):
    """The connection of a client, which it makes again when the server has closed it."""

    def open(self, request: Request, part: Part) -> Exchange:
        """Begin a request, whose answer is written into a part."""

    def drop(self) -> None:
        """Close the connection."""
