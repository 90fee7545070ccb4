"""Read and decode the body of a request, and find the engine that answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import logging
from typing import Final, TypeVar

from werkzeug.http import parse_options_header

from ...errors import MemoryFull, UnsupportedMediaType, escape
from ...frontend import PoolingEngine, TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from .decoder import BodyDecoder, RequestT

logger = logging.getLogger(__name__)

# Bodies up to this size are decoded on the event loop. That takes at most half a
# millisecond. To wait for a busy worker thread would take as long.
_SMALL_BYTES: Final = 65_536

# Each takes a microsecond or two until the request is checked.
_FEW_VALUES: Final = 512

# The speed of the decoder with token ids. With text, it is four times as fast.
_DECODED_BYTES_PER_SECOND: Final = 8e8

# The most memory that CPython takes for a character, which has a byte or more in a body.
_BYTES_PER_CHARACTER: Final = 4


T = TypeVar("T")
EngineT = TypeVar("EngineT", TextEngine, PoolingEngine, TextEngine | PoolingEngine)


async def read_request(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
) -> tuple[RequestT, TextEngine]:
    """Read, decode and check a body, and find the engine that generates the answer.

    Args:
      decoder: of the endpoint's bodies.

    Raises:
      RequestError: a field is wrong, or the model is not served here.
      ShuttingDown, ModelLoading: the server is draining, or has no model yet.
      UnsupportedMediaType, HTTPException: as read_json_body.
    """
    return await _read(state, request, decoder, state.require_text)


async def read_pooling_request(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
) -> tuple[RequestT, PoolingEngine]:
    """Do the same for a model that pools."""
    return await _read(state, request, decoder, state.require_pooling)


async def read_any_request(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
) -> tuple[RequestT, TextEngine | PoolingEngine]:
    """Do the same for an endpoint that every model serves."""
    return await _read(state, request, decoder, state.require_engine)


async def _read(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
    require: Callable[[str | None], EngineT],
) -> tuple[RequestT, EngineT]:
    chunks = await wait_body(state, request)
    engine = require(None)
    work = partial(
        decode_chunks,
        chunks,
        decoder,
        engine.info.max_model_len,
        str(request.id),
        ignores_unknown_tools=state.config.ignore_unknown_tools,
    )
    body = await run_decoding(engine, work, chunks)
    request.time_limit.shorten("timeout", body.timeout)
    return body, require(body.model)


async def wait_body(
    state: ServerState, request: ScopedRequest
) -> list[bytes | bytearray]:
    """Read a body; raises as read_json_body, and ShuttingDown."""
    # A drain ends this wait, because the sender of a body could delay the drain.
    with state.lifecycle.until_drain():
        chunks = await read_json_body(request)
    request.progress.enter("render")
    return chunks


async def run_decoding(
    engine: TextEngine | PoolingEngine,
    decode: Callable[[], T],
    chunks: list[bytes | bytearray],
) -> T:
    """Decode a body, or look at it, in a renderer worker if it is large.

    Args:
      chunks: the parts of the body.
    """
    num_bytes = sum(map(len, chunks))
    if num_bytes <= _SMALL_BYTES and _has_few_values(chunks):
        return decode()
    return await engine.renderer.workers.run(
        decode, expected_seconds=num_bytes / _DECODED_BYTES_PER_SECOND
    )


def _has_few_values(chunks: list[bytes | bytearray]) -> bool:
    """Return whether a body has few objects and lists.

    This counts the bytes that begin them, also inside of strings, so the true number may be
    smaller. A field counts as an eighth of an object, because it takes an eighth of the time.
    """
    num_values = sum(
        chunk.count(b"{") + chunk.count(b"[") + chunk.count(b'":') // 8
        for chunk in chunks
    )
    return num_values <= _FEW_VALUES


def decode_chunks(
    chunks: list[bytes | bytearray],
    decoder: BodyDecoder[RequestT],
    max_model_len: int,
    request_id: str = "",
    *,
    ignores_unknown_tools: bool = False,
) -> RequestT:
    """Join the parts of a body and decode it. This blocks, and empties `chunks`.

    Raises:
      MemoryFull: the system has no memory for that.
    """
    content = join_chunks(chunks)
    body = decoder.decode(
        content, max_model_len, ignores_unknown_tools=ignores_unknown_tools
    )
    _log_unknown_fields(content, decoder, request_id)
    return body


def join_chunks(chunks: list[bytes | bytearray]) -> bytes:
    """Join the parts of a body, and empty `chunks`.

    Raises:
      MemoryFull: the system has no memory for that, or for the texts of the body.
    """
    try:
        content = b"".join(chunks)
        _probe_memory(len(content))
    except MemoryError:
        raise MemoryFull("bodies") from None
    chunks.clear()
    return content


def _probe_memory(num_bytes: int) -> None:
    """Raise MemoryError if there is no memory for the texts of a body.

    msgspec 0.22 ends the process if it cannot allocate a text. The pages of these zeros are
    never touched, so they cost microseconds.
    """
    if num_bytes > _SMALL_BYTES:
        bytes(_BYTES_PER_CHARACTER * num_bytes)


async def read_json_body(request: ScopedRequest) -> list[bytes | bytearray]:
    """Read a body that is declared as JSON; returns its parts in order.

    Raises:
      UnsupportedMediaType: the body is not declared as JSON, or is compressed.
      UploadTooSlow, MemoryFull, RequestEntityTooLarge: as read_chunks.
    """
    kind, _ = parse_options_header(request.headers.get("Content-Type"))
    # RFC 9110, 8.3.1: names of media types have no case.
    kind = kind.lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType("Content-Type", "application/json")
    # A compressed body may be a thousand times longer than its declared length, and
    # OpenAI's clients never compress.
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Content-Encoding", "identity")
    return await request.read_chunks()


def _log_unknown_fields(
    content: bytes, decoder: BodyDecoder[RequestT], request_id: str
) -> None:
    """Log the fields that the server does not know in one debug line, as vLLM does."""
    if logger.isEnabledFor(logging.DEBUG):
        if unknown := decoder.list_unknown_fields(content):
            logger.debug(
                "request %s: ignored unknown fields: %s",
                request_id,
                escape(", ".join(unknown)),
            )
