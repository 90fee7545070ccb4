"""Processes that live and die together, and the messages between them.

    open_child       starts `python -m MODULE` and ends it, whatever happens
    start_early      the same before trio runs, for the next open_child of the module
    run_as_child     the entry of such a module
    run_with_parent, serve_peer    its two halves, for a process that torchrun starts
    beat             sends a sign of life every second
    Message, Alive   the base of all messages, and the one that each family has
    MessageStream    msgspec structs both ways, tensors through shared memory
    questions        numbered questions and their answers
    silence          the watch over a process that may have stopped

It does not know engines or devices. Nothing is pickled: messages hold only data.
"""

from .child import Child, open_child, start_early
from .messages import (
    Alive,
    Descriptor,
    Message,
    MessageStream,
    PackedMessage,
    PeerGone,
    pack,
)
from .parent import (
    beat,
    die_with_parent,
    ignore_stops,
    run_as_child,
    run_with_parent,
    serve_peer,
)

__all__ = [
    "Alive",
    "Child",
    "Descriptor",
    "PackedMessage",
    "Message",
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
    "start_early",
]
