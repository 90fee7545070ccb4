"""The body of a request, before anybody understands it, and of a plain answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import logging
from typing import Final, Protocol, TypeVar

import msgspec
from quart import Response
from werkzeug.http import parse_options_header

from ..errors import TrioserveError, Unavailable, UnsupportedMediaType
from ..observe.log_lines import escape
from ..pooling_engine import PoolingEngine
from ..render import RendererWorkers
from ..text_engine import TextEngine
from .responses import ErrorBody, encode
from .schema import list_unknown_fields
from .scope import ScopedRequest
from .state import ServerState

logger = logging.getLogger(__name__)

# Decoded on the loop: at most half a millisecond, which is what a thread would cost
# behind others that wait for a worker.
_SMALL_BYTES: Final = 65_536

# Of token ids a decoder reads so much in a second, and of text four times as much.
_DECODED_BYTES_PER_SECOND: Final = 8e8

# A microsecond or two each to write.
_FEW_ENTRIES: Final = 512


# A server whose engine has ended needs about as long until somebody has restarted it.
_RESTART_SECONDS: Final = 10


class _Request(Protocol):
    @property
    def model(self) -> str | None: ...


RequestT = TypeVar("RequestT", bound=_Request)
EngineT = TypeVar("EngineT", TextEngine, PoolingEngine, TextEngine | PoolingEngine)


async def read_request(
    state: ServerState,
    request: ScopedRequest,
    decode: Callable[[bytes, int], RequestT],
) -> tuple[RequestT, TextEngine]:
    """Read, decode and check a request; and find the engine that answers it.

    Args:
      decode: one of schema's; given the body and the model's length.

    Raises:
      RequestError: a field is wrong, or the model is not served here.
      ShuttingDown: nobody is.
      UnsupportedMediaType, HTTPException: as read_json_body.
    """
    return await _read(state, request, decode, state.require_text)


async def read_pooling_request(
    state: ServerState,
    request: ScopedRequest,
    decode: Callable[[bytes, int], RequestT],
) -> tuple[RequestT, PoolingEngine]:
    """Do the same where texts are pooled."""
    return await _read(state, request, decode, state.require_pooling)


async def read_any_request(
    state: ServerState,
    request: ScopedRequest,
    decode: Callable[[bytes, int], RequestT],
) -> tuple[RequestT, TextEngine | PoolingEngine]:
    """Do the same for what every model answers."""
    return await _read(state, request, decode, state.require_engine)


async def _read(
    state: ServerState,
    request: ScopedRequest,
    decode: Callable[[bytes, int], RequestT],
    require: Callable[[str | None], EngineT],
) -> tuple[RequestT, EngineT]:
    # A body that is half there may hold a drain up for as long as its sender likes.
    with state.lifecycle.until_drain():
        chunks = await read_json_body(request)
    request.progress.enter("render")
    engine = require(None)
    work = partial(
        decode_chunks, chunks, decode, engine.info.max_model_len, str(request.id)
    )
    num_bytes = sum(map(len, chunks))
    if num_bytes <= _SMALL_BYTES:
        asked = work()
    else:
        asked = await engine.renderer.workers.run(
            work, expected_seconds=num_bytes / _DECODED_BYTES_PER_SECOND
        )
    return asked, require(asked.model)


def decode_chunks(
    chunks: list[bytes | bytearray],
    decode: Callable[[bytes, int], RequestT],
    max_model_len: int,
    request_id: str = "",
) -> RequestT:
    """Put a body together, which uses it up, and decode it. Blocking."""
    body = b"".join(chunks)
    chunks.clear()
    asked = decode(body, max_model_len)
    log_unknown_fields(body, asked, request_id)
    return asked


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


def log_unknown_fields(body: bytes, asked: object, request_id: str) -> None:
    """Tell of fields that nobody reads, in one debug line, as vLLM does."""
    if logger.isEnabledFor(logging.DEBUG):
        if unknown := list_unknown_fields(body, asked):
            logger.debug(
                "request %s: ignored unknown fields: %s",
                request_id,
                escape(", ".join(unknown)),
            )


def respond_json(
    content: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(encode(content), status, headers, content_type="application/json")


def respond_error(
    error: TrioserveError,
    status: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer with an error, and say with 429 and 503 when to come again.

    Args:
      status: in place of the error's own.
    """
    status = status or error.status
    headers = dict(headers or {})
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif status == 503:
        headers["Retry-After"] = str(_RESTART_SECONDS)
    return respond_json(ErrorBody.of(error), status, headers)


async def respond_built(
    workers: RendererWorkers, build: Callable[[], msgspec.Struct], num_entries: int
) -> Response:
    """Build and encode an answer; num_entries as in run_writing."""
    content = await run_writing(workers, lambda: encode(build()), num_entries)
    return Response(content, content_type="application/json")


async def run_writing(
    workers: RendererWorkers, write: Callable[[], bytes], num_entries: int
) -> bytes:
    """Write an answer, in a renderer worker where it would hold the loop up.

    Args:
      num_entries: tokens and log probabilities that it shows, and what takes as long;
        what else an answer has takes microseconds.
    """
    return write() if num_entries <= _FEW_ENTRIES else await workers.run(write)
