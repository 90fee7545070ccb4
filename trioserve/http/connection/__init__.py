"""Mends hypercorn's connections, so that a peer can end its own connection at most.

No other room uses private names of hypercorn and h11. Because of them, hypercorn is
pinned to 0.18.*, and h11 to 0.16.*. The door:

    install_guard  replaces hypercorn's connection classes in this process. Call it before
                   a server starts: when `trioserve.asgi` is imported (the plain
                   `hypercorn -k trio` command imports the app first), and before
                   `hypercorn.trio.serve` if hypercorn is embedded.
    guard_connections
                   does so by the options of a server.
    raise_descriptor_limit
                   for a process that is a server and nothing else.
    list_connections
                   for the leak audit: the descriptors of all connections.
    make_config    makes a hypercorn Config for token streams.
    INVITE_BODY    the key of an ASGI extension. The app calls it to ask for a body; then
                   `Expect: 100-continue` is answered.
    PEER           the key of another extension. The app puts a Peer there, which
                   records whether the peer got its answer before it left.
    CHUNKS         the key of a third one. Once the head of a chunked answer was sent, the
                   app may send each part of the body by the ChunkSender there.

Each class mends these defects:

    GuardedServer   an error of one connection ended the process
                    no keep-alive timeout, no `Connection: close` and no end of an
                    HTTP/1.0 stream after a response of quart-trio
                    a peer that never read delayed the exit for ever
                    each write cost a lock, a cancel scope and two checkpoints
                    idle peers could take all descriptors
                    a reset could destroy a refusal that was sent before the upload was
                    read
                    a peer that sent its bytes one by one cost a read for each of them
    Beginnings      requests that came at once took turns of 20 ms of the event loop
    GuardedH11      a request that h11 refused was answered without a body
                    a client that sent one byte too many could leave unnoticed
                    an answer before the end of the body did not announce the close
    StrictConnection
                    both Transfer-Encoding and Content-Length were accepted
                    an empty line before a request was refused
                    a target without a path was answered 500
                    100 Continue was sent for a body that the app then refused
                    any client could switch a plain port to HTTP/2 or to a websocket
                    a head had any number of fields
    JoiningReader   a body of one-byte chunks cost 22 us a byte
    GuardedH2       one malformed request, or body bytes that came after the answer,
                    ended every other stream of the connection
                    1,000 PRIORITY frames ended the connection
                    a window that stayed shut kept its streams for ever
                    a client did not learn that its answer had been cut off
                    the 1,001st request, and all that ran with it, got no answer
    GuardedBuffer   an app could write without limit to a stream whose window was shut
    FrameCutter     floods of small frames blocked the event loop and never ended
                    a frame of 16 MB was collected before it was refused
    BoundedDecoder  one header block could take a second

Plain HTTP/2 (h2c) is refused unless enabled: a client that begins with its preface is
answered 505, and its connection is closed. Upgrades to h2c (which RFC 9113, 3.1
deprecates) or to websockets are always ignored, as RFC 9110, 7.8 allows: the request is
served as an HTTP/1.1 request. All this does not concern HTTP/2 over TLS.

hypercorn's read_timeout has no effect, because it would cut every stream whose client has
nothing more to send. A client that closes its sending side counts as gone.
"""

from .descriptors import raise_descriptor_limit
from .exchange import CHUNKS, PEER, ChunkSender, Peer
from .guard import guard_connections, install_guard, list_connections, make_config
from .http1 import INVITE_BODY

__all__ = [
    "CHUNKS",
    "INVITE_BODY",
    "PEER",
    "ChunkSender",
    "Peer",
    "guard_connections",
    "install_guard",
    "list_connections",
    "make_config",
    "raise_descriptor_limit",
]
