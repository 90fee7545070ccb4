"""HTML documents for people, and the headers under which a browser may show them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
import hashlib
import re
from typing import Final

from quart import Response

from ...errors import EndpointOff
from ...http.route import Route
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from .parts import join_page

HTML: Final = "text/html; charset=utf-8"

# CSP 3, 2.3.1: the text between the tags is hashed. Both tags stand alone, without
# attributes, so that nothing else is found.
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)

_POLICY: Final = (
    "default-src 'none'",
    "img-src data: blob:",
    "connect-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    # No script may turn text into HTML or into a script.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)


class Document:
    """An HTML document, which is the same for all clients.

    Args:
      html: its scripts and styles are inline, in tags without attributes.
    """

    def __init__(self, html: str) -> None:
        self.html = html
        self.content = html.encode()

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers besides the headers of its content."""
        return {
            "Content-Security-Policy": "; ".join(self._list_policy()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            # A newer server at the same address has another page.
            "Cache-Control": "no-cache",
            "ETag": self.etag,
        }

    def _list_policy(self) -> Iterator[str]:
        yield from _POLICY
        for kind in ("script", "style"):
            yield f"{kind}-src {' '.join(self._list_hashes(kind))}"

    def _list_hashes(self, kind: str) -> list[str]:
        found = [text for each, text in _INLINE.findall(self.html) if each == kind]
        return [_hash(text) for text in found] or ["'none'"]


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def load_page() -> Document:
    return Document(join_page())


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
