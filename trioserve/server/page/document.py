"""HTML documents for people, and the headers under which a browser may show them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
import hashlib
import re
from typing import Final

from quart import Response

from ...errors import EndpointOff
from ...http.route import Route
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from .libraries import FOLDER, list_script_hashes, load_libraries
from .parts import join_page

HTML: Final = "text/html; charset=utf-8"

# CSP 3, 2.3.1: the text between the tags is hashed. The tags stand alone, without other
# attributes, so that nothing else is found.
_INLINE: Final = re.compile(
    r'<(script|style)(?: type="importmap")?>(.*?)</\1>', re.DOTALL
)

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
_SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A newer server at the same address has another page.
    "Cache-Control": "no-cache",
}


class Document:
    """An HTML document, which is the same for all clients.

    Args:
      html: its scripts and styles are inline, in tags without attributes.
      scripts: hashes of scripts that it loads later.
    """

    def __init__(self, html: str, scripts: Sequence[str] = ()) -> None:
        self.html = html
        self._scripts = scripts
        self.content = html.encode()

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers besides the headers of its content."""
        return {
            "Content-Security-Policy": "; ".join(self._list_policy()),
            **_SAFE_HEADERS,
            "ETag": self.etag,
        }

    def _list_policy(self) -> Iterator[str]:
        yield from _POLICY
        for kind in ("script", "style"):
            yield f"{kind}-src {' '.join(self._list_hashes(kind))}"

    def _list_hashes(self, kind: str) -> list[str]:
        found = [text for each, text in _INLINE.findall(self.html) if each == kind]
        hashes = [_hash(text) for text in found]
        if kind == "script":
            hashes += [f"'{each}'" for each in self._scripts]
        return hashes or ["'none'"]


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def load_page() -> Document:
    return Document(join_page(), list_script_hashes())


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
    return _respond(request, document.content, HTML, document.headers)


def _respond(
    request: ScopedRequest,
    content: bytes,
    content_type: str,
    headers: Mapping[str, str],
) -> Response:
    if request.if_none_match.contains_weak(headers["ETag"].strip('"')):
        return Response(b"", 304, {**headers})
    return Response(content, 200, {**headers}, content_type=content_type)


async def answer_library(state: ServerState, request: ScopedRequest) -> Response:
    """Send a library that the page loads when a message needs it.

    Raises:
      EndpointOff
    """
    if not state.config.ui:
        raise EndpointOff("--ui")
    library = load_libraries()[request.path.rsplit("/", 1)[1]]
    headers = {**_SAFE_HEADERS, "ETag": f'"{library.integrity}"'}
    return _respond(request, library.content, library.content_type, headers)


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
    Route(
        method="GET",
        paths=tuple(f"/{FOLDER}/{name}" for name in load_libraries()),
        handler=answer_library,
        summary="Send a library that the page loads when a message needs it.",
        answers={"text/javascript": str, "text/css": str},
        errors=NO_UI,
        is_document=True,
    ),
)
