"""Processes that live and die together, and what they say to each other.

    open_child       starts `python -m MODULE` and ends it, whatever happens
    run_as_child     what such a module does first
    run_with_parent, serve_peer    its two halves, where somebody else starts it
    beat             tells them that one of them is there
    MessageStream    msgspec structs both ways, tensors through shared memory

It knows no engine and no device. Nothing is pickled: what a process sends is data.
"""

from .child import Child, open_child
from .messages import MessageStream, PackedMessage, PeerGone, pack
from .parent import (
    beat,
    die_with_parent,
    ignore_stops,
    run_as_child,
    run_with_parent,
    serve_peer,
)

__all__ = [
    "Child",
    "PackedMessage",
    "MessageStream",
    "PeerGone",
    "beat",
    "die_with_parent",
    "ignore_stops",
    "open_child",
    "pack",
    "run_as_child",
    "run_with_parent",
    "serve_peer",
]
