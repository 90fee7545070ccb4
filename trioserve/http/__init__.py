"""Speaks HTTP and JSON: requests in, answers and server-sent events out.

This room knows quart, hypercorn and the engines of frontend/. It does not know tensors,
blocks or steps. No other room uses quart, and only connection/ uses hypercorn's private
names.

The doors: ServerState holds the objects that all handlers share. create_http_app makes
the ASGI app. guard_connections, make_config and raise_descriptor_limit prepare hypercorn and
its process.
"""

from typing import TYPE_CHECKING

from .connection import guard_connections, make_config, raise_descriptor_limit
from .state import ServerState

if TYPE_CHECKING:
    from .app import ServingApp, create_http_app

__all__ = [
    "ServerState",
    "ServingApp",
    "create_http_app",
    "guard_connections",
    "make_config",
    "raise_descriptor_limit",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Imported at the first use, because quart and the handlers take long to import.
        # The server does that while its engine loads the model.
        if name not in ("ServingApp", "create_http_app"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import app

        return getattr(app, name)
