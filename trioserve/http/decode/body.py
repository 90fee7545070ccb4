"""The body of a request: read, decoded, and brought to the engine that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import logging
from typing import Final, TypeVar

from werkzeug.http import parse_options_header

from ...errors import UnsupportedMediaType
from ...frontend import PoolingEngine
from ...frontend.text import TextEngine
from ...observe.log_lines import escape
from ..connection.scope import ScopedRequest
from ..state import ServerState
from .requests import ModelRequest
from .schema import decode_body, find_decoder

logger = logging.getLogger(__name__)

# Decoded on the loop: at most half a millisecond, which is what a thread would cost
# behind others that wait for a worker.
_SMALL_BYTES: Final = 65_536

# Of token ids a decoder reads so much in a second, and of text four times as much.
_DECODED_BYTES_PER_SECOND: Final = 8e8


RequestT = TypeVar("RequestT", bound=ModelRequest)
EngineT = TypeVar("EngineT", TextEngine, PoolingEngine, TextEngine | PoolingEngine)


async def read_request(
    state: ServerState,
    request: ScopedRequest,
    request_type: type[RequestT],
) -> tuple[RequestT, TextEngine]:
    """Read, decode and check a request; and find the engine that answers it.

    Args:
      request_type: the struct of the endpoint's body.

    Raises:
      RequestError: a field is wrong, or the model is not served here.
      ShuttingDown: nobody is.
      UnsupportedMediaType, HTTPException: as read_json_body.
    """
    return await _read(state, request, request_type, state.require_text)


async def read_pooling_request(
    state: ServerState,
    request: ScopedRequest,
    request_type: type[RequestT],
) -> tuple[RequestT, PoolingEngine]:
    """Do the same where texts are pooled."""
    return await _read(state, request, request_type, state.require_pooling)


async def read_any_request(
    state: ServerState,
    request: ScopedRequest,
    request_type: type[RequestT],
) -> tuple[RequestT, TextEngine | PoolingEngine]:
    """Do the same for what every model answers."""
    return await _read(state, request, request_type, state.require_engine)


async def _read(
    state: ServerState,
    request: ScopedRequest,
    request_type: type[RequestT],
    require: Callable[[str | None], EngineT],
) -> tuple[RequestT, EngineT]:
    # A body that is half there may hold a drain up for as long as its sender likes.
    with state.lifecycle.until_drain():
        chunks = await read_json_body(request)
    request.progress.enter("render")
    engine = require(None)
    work = partial(
        decode_chunks, chunks, request_type, engine.info.max_model_len, str(request.id)
    )
    num_bytes = sum(map(len, chunks))
    if num_bytes <= _SMALL_BYTES:
        body = work()
    else:
        body = await engine.renderer.workers.run(
            work, expected_seconds=num_bytes / _DECODED_BYTES_PER_SECOND
        )
    return body, require(body.model)


def decode_chunks(
    chunks: list[bytes | bytearray],
    request_type: type[RequestT],
    max_model_len: int,
    request_id: str = "",
) -> RequestT:
    """Put a body together, which uses it up, and decode it. Blocking."""
    content = b"".join(chunks)
    chunks.clear()
    body = decode_body(request_type, content, max_model_len)
    log_unknown_fields(content, request_type, request_id)
    return body


async def read_json_body(request: ScopedRequest) -> list[bytes | bytearray]:
    """Read a body that says it is JSON, as its parts in order.

    Raises:
      UnsupportedMediaType: it says that it is something else, or nothing, or that it is
        compressed.
      UploadTooSlow, MemoryFull, RequestEntityTooLarge: as read_chunks.
    """
    kind, _ = parse_options_header(request.headers.get("Content-Type"))
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType("Content-Type", "application/json")
    # A compressed body may be a thousand times as long as it says, and OpenAI's clients
    # compress none.
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Content-Encoding", "identity")
    return await request.read_chunks()


def log_unknown_fields(
    content: bytes, request_type: type[ModelRequest], request_id: str
) -> None:
    """Tell of fields that nobody reads, in one debug line, as vLLM does."""
    if logger.isEnabledFor(logging.DEBUG):
        if unknown := find_decoder(request_type).list_unknown_fields(content):
            logger.debug(
                "request %s: ignored unknown fields: %s",
                request_id,
                escape(", ".join(unknown)),
            )
