"""Processes that live and die together, and what they say to each other.

    open_child       starts `python -m MODULE` and ends it, whatever happens
    run_as_child     what such a module does first
    MessageStream    msgspec structs both ways, tensors through shared memory

It knows no engine and no device. Nothing is pickled: what a process sends is data.
"""

from .child import Child, open_child
from .messages import Mail, MessageStream, PeerGone, pack
from .parent import run_as_child

__all__ = [
    "Child",
    "Mail",
    "MessageStream",
    "PeerGone",
    "open_child",
    "pack",
    "run_as_child",
]
