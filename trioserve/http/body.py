"""The body of a request, before anybody understands it, and of a plain answer."""

from __future__ import annotations

import logging

import msgspec
from quart import Response
from werkzeug.http import parse_options_header

from ..errors import UnsupportedMediaType
from .responses import encode
from .schema import list_unknown_fields
from .scope import ScopedRequest

logger = logging.getLogger(__name__)


async def read_json_body(request: ScopedRequest) -> bytes:
    """Read a body that says it is JSON.

    Raises:
      UnsupportedMediaType: it says that it is something else, or nothing.
      werkzeug.exceptions.HTTPException: it is too long (413), or too slow (408).
    """
    kind, _ = parse_options_header(request.headers.get("Content-Type"))
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType()
    return await request.get_data(cache=False, as_text=False, parse_form_data=False)


def log_unknown_fields(body: bytes, asked: msgspec.Struct) -> None:
    """Tell of fields that nobody reads, in one debug line, as vLLM does."""
    if logger.isEnabledFor(logging.DEBUG):
        if unknown := list_unknown_fields(body, asked):
            logger.debug("ignored unknown fields: %s", ", ".join(unknown))


def respond_json(
    content: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(encode(content), status, headers, content_type="application/json")
