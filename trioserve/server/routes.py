"""The table of all endpoints.

It joins the tables of the dialects and of the server's own rooms. It feeds the app (app.py)
and the OpenAPI document (openapi.py), and a test keeps the table of docs/api.rst equal to
it. A new endpoint is a handler, the structs of its request and its answer, and a row in the
table of its dialect. A new dialect is a folder and one line here.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
from quart import Response
import trio

from ..api.anthropic.routes import ROUTES as _ANTHROPIC
from ..api.chat.routes import ROUTES as _CHAT
from ..api.cohere.routes import ROUTES as _COHERE
from ..api.completions.routes import ROUTES as _COMPLETIONS
from ..api.ollama.routes import ROUTES as _OLLAMA
from ..api.pooling.routes import ROUTES as _POOLING
from ..api.responses.routes import ROUTES as _RESPONSES
from ..api.tokens.routes import ROUTES as _TOKENS
from ..http.route import Route
from ..http.scope import ScopedRequest
from ..http.state import ServerState
from ..http.wire.respond import JSON
from ..types.version import __version__
from .admin.routes import ROUTES as _ADMIN
from .openapi import openapi_document
from .page import Document, render_reference
from .page.document import NO_UI, ROUTES as _PAGE, respond_document


async def answer_openapi(state: ServerState, request: ScopedRequest) -> Response:
    """Describe this API."""
    return Response(_render_openapi(state.config.root_path), content_type=JSON)


@cache
def _render_openapi(root_path: str | None) -> bytes:
    return msgspec.json.encode(openapi_document(__version__, ROUTES, root_path))


async def answer_docs(state: ServerState, request: ScopedRequest) -> Response:
    """Show the description of this API."""
    if request.path.endswith("/"):
        # Below this path, the document's relative links would lead elsewhere.
        return Response(b"", 308, {"Location": "../docs"})
    document = await trio.to_thread.run_sync(
        _render_docs, state.config.root_path, limiter=_RENDERING
    )
    return respond_document(state, request, document)


# To write the document takes a quarter of a second, once.
_RENDERING: Final = trio.CapacityLimiter(1)


@cache
def _render_docs(root_path: str | None) -> Document:
    return render_reference(openapi_document(__version__, ROUTES, root_path))


# The endpoints that describe all endpoints.
_DESCRIPTIONS: Final = (
    Route(
        method="GET",
        paths=("/openapi.json",),
        handler=answer_openapi,
        summary="Describe this API.",
        answers={JSON: None},
    ),
    Route(
        method="GET",
        paths=("/docs",),
        handler=answer_docs,
        summary="Show the description of this API.",
        answers={"text/html": str},
        errors=NO_UI,
        is_document=True,
    ),
)

ROUTES: Final[tuple[Route, ...]] = (
    *_CHAT,
    *_COMPLETIONS,
    *_RESPONSES,
    *_ANTHROPIC,
    *_POOLING,
    *_COHERE,
    *_OLLAMA,
    *_TOKENS,
    *_ADMIN,
    *_PAGE,
    *_DESCRIPTIONS,
)
