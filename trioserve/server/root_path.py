"""Serves the API below a path of a proxy in front."""

from __future__ import annotations

from typing import cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from .admin.probes import AsgiApp


class BelowRootPath:
    """An ASGI app that cuts a path off, if the proxy has not done so.

    Args:
      root_path: begins with a slash, and does not end with one.
    """

    def __init__(self, app: AsgiApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(
            f"{self._root_path}/"
        ):
            path = scope["path"].removeprefix(self._root_path) or "/"
            # The connection writes into the extensions, so both share them.
            scope = cast(HTTPScope, {**scope, "path": path})
        await self._app(scope, receive, send)
