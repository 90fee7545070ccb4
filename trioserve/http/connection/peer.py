"""Reports to a request whether its peer got the answer; ASGI does not report that.

ASGI's http.disconnect comes after each request, whether the answer was written or the
peer has left before that. And a write to a peer that has left does not fail.
"""

from __future__ import annotations

import math

from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream

# The key of an ASGI extension. The app puts a Peer there, and the connection fills it.
PEER = "trioserve.peer"


class Peer:
    """The peer of one request.

    Attributes:
      is_answered: the whole answer was sent to it.
      is_lost: a write to it failed, or took too long.
      lost_at: when a write that is not complete counts as failed, in seconds of
        trio.current_time(). Set by the app; HTTP/1 obeys it.
    """

    def __init__(self) -> None:
        self.is_answered = False
        self.is_lost = False
        self.lost_at = math.inf


def mark_answered(stream: HTTPStream | WSStream | None) -> None:
    """Note that the answer of a request is complete, unless its peer is lost."""
    if peer := _find_peer(stream):
        peer.is_answered = not peer.is_lost


def mark_lost(stream: HTTPStream | WSStream | None) -> None:
    """Note that the rest of the answer cannot reach the peer."""
    if peer := _find_peer(stream):
        peer.is_lost = True


def find_lost_at(stream: HTTPStream | WSStream | None) -> float:
    """Return the time when the peer of a request counts as lost."""
    peer = _find_peer(stream)
    return math.inf if peer is None else peer.lost_at


def _find_peer(stream: HTTPStream | WSStream | None) -> Peer | None:
    # A stream whose request was refused has no scope.
    scope = getattr(stream, "scope", None)
    peer: Peer | None = scope and scope["extensions"].get(PEER)
    return peer
