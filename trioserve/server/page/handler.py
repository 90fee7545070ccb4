"""Answers with documents for people, which browsers keep until they change."""

from __future__ import annotations

from typing import Final

from quart import Response

from . import Document, load_page
from ...errors import EndpointOff
from ...http.route import Route
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from .document import HTML

NO_UI: Final = {"404": "An option (--no-ui) turns it off."}


async def answer_page(state: ServerState, request: ScopedRequest) -> Response:
    """Show the page, which reads the other endpoints."""
    return respond_document(state, request, load_page())


def respond_document(
    state: ServerState, request: ScopedRequest, document: Document
) -> Response:
    """Answer with a document, or tell the browser that its own is still the same.

    Raises:
      EndpointOff
    """
    if not state.config.ui:
        raise EndpointOff("--ui")
    if request.if_none_match.contains_weak(document.etag.strip('"')):
        return Response(b"", 304, {**document.headers})
    return Response(document.content, 200, {**document.headers}, content_type=HTML)


ROUTES: Final = (
    Route(
        method="GET",
        paths=("/",),
        handler=answer_page,
        summary="Show a page with a chat and the running requests.",
        answers={"text/html": str},
        errors=NO_UI,
        is_document=True,
    ),
)
