"""hypercorn's sockets, mended: one peer can end one connection and no more.

The only room that knows private names of hypercorn and h11. So hypercorn is pinned to
0.18.*, and h11 to 0.16.*. The door:

    install_guard  replaces hypercorn's connection classes, for this process. Call it
                   before a server starts: when `trioserve.asgi` is imported (the plain
                   `hypercorn -k trio` command imports the app first) and before
                   `hypercorn.trio.serve` when hypercorn is embedded.
    raise_descriptor_limit
                   for a process that is a server and nothing else.
    make_config    a hypercorn Config whose values suit token streams.
    INVITE_BODY    the key of an ASGI extension. The app calls it to ask for a body, and
                   then `Expect: 100-continue` is answered.
    PEER           the key of an extension, too. The app puts a Peer there, and then knows
                   whether a peer that is gone has got its answer.

What is mended, and where:

    GuardedServer   an error of one connection ended the process
                    no keep-alive timeout, no `Connection: close` and no end of an
                    HTTP/1.0 stream after a response of quart-trio
                    a peer that never reads held the exit up for ever
                    each write cost a lock, a cancel scope and two checkpoints
                    idle strangers could take all descriptors
                    a refusal sent before the upload was read could get lost in a reset
    GuardedH11      a request that h11 refused was answered without a body
                    a client that left was not noticed after one byte too many
                    an answer before the end of the body did not say that it closes
    StrictConnection
                    both Transfer-Encoding and Content-Length were accepted
                    an empty line before a request was refused
                    a target without a path ended in a 500
                    100 Continue was sent for a body that the app then refused
                    any stranger could switch a plain port to HTTP/2 or to a websocket
    JoiningReader   a body of one-byte chunks cost 22 us a byte
    GuardedH2       one malformed request, or body bytes that came after the answer,
                    ended every other stream of the connection
                    1,000 PRIORITY frames ended the connection
                    a window that stayed shut held its streams for ever
                    a client was never told that its answer had broken off
                    the 1,001st request and all that ran with it got no answer
    GuardedBuffer   an app could write without end to a stream whose window was shut
    FrameCutter     floods of small frames blocked the event loop and never ended
                    a frame of 16 MB was gathered before it was refused
    BoundedDecoder  one header block could take a second

Plain HTTP/2 (h2c) is refused unless enabled: a client that begins with its preface,
by prior knowledge, is answered 505 and closed. Upgrades, to h2c (which RFC 9113 3.1
gave up) or to websockets, are always ignored, as RFC 9110 7.8 allows: the request is
served as the HTTP/1.1 request that it also is. HTTP/2 over TLS is not concerned.

hypercorn's read_timeout, which would cut every stream whose client has nothing more
to say, has no effect. A client that shuts its sending side down counts as gone.
"""

from .descriptors import raise_descriptor_limit
from .guard import install_guard, make_config
from .http1 import INVITE_BODY
from .peer import PEER, Peer

__all__ = [
    "INVITE_BODY",
    "PEER",
    "Peer",
    "install_guard",
    "make_config",
    "raise_descriptor_limit",
]
