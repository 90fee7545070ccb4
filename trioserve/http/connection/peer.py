"""What a request may know of its peer, and ASGI does not tell.

ASGI's http.disconnect comes after each request, whether its answer was written or its
peer has left. And a write to a peer that has left does not fail.
"""

from __future__ import annotations

from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream

# The key of an ASGI extension. The app puts a Peer there, and the connection fills it.
PEER = "trioserve.peer"


class Peer:
    """What is known of the peer that has sent one request.

    Attributes:
      is_answered: it has been sent the whole answer.
      is_lost: a write to it has failed, or took too long.
    """

    def __init__(self) -> None:
        self.is_answered = False
        self.is_lost = False


def mark_answered(stream: HTTPStream | WSStream | None) -> None:
    """Note that the answer of a request has been written, if that was possible."""
    if peer := _find_peer(stream):
        peer.is_answered = not peer.is_lost


def mark_lost(stream: HTTPStream | WSStream | None) -> None:
    """Note that what is written of the answer from now on goes nowhere."""
    if peer := _find_peer(stream):
        peer.is_lost = True


def _find_peer(stream: HTTPStream | WSStream | None) -> Peer | None:
    # A stream whose request was refused has no scope.
    scope = getattr(stream, "scope", None)
    peer: Peer | None = scope and scope["extensions"].get(PEER)
    return peer
