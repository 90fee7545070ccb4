"""Processes that live and die together, and the messages between them.

    open_child       starts `python -m MODULE` and ends it, whatever happens
    run_as_child     the entry of such a module
    run_with_parent, serve_peer    its two halves, for a process that torchrun starts
    beat             sends a sign of life every second
    MessageStream    msgspec structs both ways, tensors through shared memory

It does not know engines or devices. Nothing is pickled: messages hold only data.
"""

from .child import Child, open_child
from .messages import Descriptor, MessageStream, PackedMessage, PeerGone, pack
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
    "Descriptor",
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
