"""Speaks HTTP and JSON: requests in, answers and server-sent events out.

It knows quart, hypercorn and the text engine; it knows no tensor, no block and no
step. connection/ alone knows hypercorn's private names, and quart is known here only.

The doors: ServerState holds what a server's handlers share, create_http_app makes the
ASGI app; install_guard, make_config and raise_descriptor_limit prepare hypercorn and its
process for it.
"""

from .app import ServingApp, create_http_app
from .connection import install_guard, make_config, raise_descriptor_limit
from .state import ServerState

__all__ = [
    "ServerState",
    "ServingApp",
    "create_http_app",
    "install_guard",
    "make_config",
    "raise_descriptor_limit",
]
