"""Read and decode the body of a request, and find the engine that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
import logging
from typing import Final, TypeVar

import msgspec
from werkzeug.http import parse_options_header

from ...errors import MemoryFull, UnsupportedMediaType, escape
from ...frontend import PoolingEngine, TextEngine
from ...http.live.model_hold import ModelHold
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...render import RendererWorkers
from .decoder import BodyDecoder, RequestT
from .fields import ModelRequest

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
    require: Callable[[ModelHold, str | None], Awaitable[EngineT]],
    *,
    is_always_json: bool = False,
) -> tuple[RequestT, EngineT]:
    """Read, decode and check a body, and find the engine that answers it.

    Args:
      decoder, is_always_json: as read_body.
      require: returns the engine for a model's name, if it is of the kind that the
        endpoint needs.

    Raises:
      ModelNotFound, TaskNotServed: the model is not served here.
      ModelFailed: it cannot be loaded.
      ModelLoading: it is not loaded within max_queue_seconds.
      Also raises the errors of read_body.
    """
    body = await read_body(state, request, decoder, is_always_json=is_always_json)
    return body, await require(request.model, body.model)


async def read_body(
    state: ServerState,
    request: ScopedRequest,
    decoder: BodyDecoder[RequestT],
    *,
    is_always_json: bool = False,
) -> RequestT:
    """Read, decode and check a body.

    Args:
      decoder: of the endpoint's bodies.
      is_always_json: as wait_body.

    Raises:
      RequestError: a field is wrong.
      ShuttingDown, ModelLoading: the server is draining, or has no model yet.
      UnsupportedMediaType, HTTPException: as wait_body.
    """
    chunks = await wait_body(state, request, is_always_json=is_always_json)
    workers = state.find_workers()
    work = partial(
        decode_chunks,
        chunks,
        decoder,
        state.longest_prompt,
        str(request.id),
        ignores_unknown_tools=state.config.ignore_unknown_tools,
    )
    body = await run_decoding(workers, work, chunks)
    take_limits(request, body)
    return body


def take_limits(request: ScopedRequest, body: ModelRequest) -> None:
    """Take the time limits of a body.

    Raises:
      InvalidParameter: a limit is longer than the server allows.
    """
    if body.timeout is not None:
        request.time_limit.shorten("timeout", body.timeout)
    # Only requests that generate have it. The wait for their model is a part of their queue.
    if seconds := getattr(body, "max_queue_seconds", None):
        request.model.starts_by = request.arrived_at + seconds


def forget(body: ModelRequest, **fields: object) -> None:
    """Replace fields that may be megabytes long and are not needed any more.

    A new struct would check all fields again, on the event loop: 3 ms for a schema of a
    megabyte.
    """
    for name, value in fields.items():
        msgspec.structs.force_setattr(body, name, value)


async def wait_body(
    state: ServerState, request: ScopedRequest, *, is_always_json: bool = False
) -> list[bytes | bytearray]:
    """Read a body that is declared as JSON; returns its parts in order.

    Args:
      is_always_json: the body need not be declared, because clients of this API leave that
        out. Pages in a browser must declare it: otherwise the pages of strangers could send
        requests without asking (CORS), and browsers say where a request comes from.

    Raises:
      UnsupportedMediaType: the body is not declared as JSON, or is compressed.
      ShuttingDown: the server is draining.
      UploadTooSlow, MemoryFull, RequestEntityTooLarge: as take_chunks.
    """
    # A drain ends this wait, because the sender of a body could delay the drain.
    with state.lifecycle.until_drain():
        kind, _ = parse_options_header(request.headers.get("Content-Type"))
        # RFC 9110, 8.3.1: names of media types have no case.
        kind = kind.lower()
        is_json = kind == "application/json" or kind.endswith("+json")
        if not (is_json or (is_always_json and "Origin" not in request.headers)):
            raise UnsupportedMediaType("Content-Type", "application/json")
        # A compressed body may be a thousand times longer than its declared length, and
        # OpenAI's clients never compress.
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("Content-Encoding", "identity")
        chunks = await request.body.take_chunks()
    request.progress.enter("render")
    return chunks


async def run_decoding(
    workers: RendererWorkers,
    decode: Callable[[], T],
    chunks: list[bytes | bytearray],
) -> T:
    """Decode a body, or look at it, in a renderer worker if it is large.

    Args:
      chunks: the parts of the body.
    """
    num_bytes = sum(map(len, chunks))
    if num_bytes <= _SMALL_BYTES and _count_values(chunks) <= _FEW_VALUES:
        return decode()
    return await workers.run(
        decode, expected_seconds=num_bytes / _DECODED_BYTES_PER_SECOND
    )


def _count_values(chunks: list[bytes | bytearray]) -> int:
    """Return the number of objects and lists of a body, roughly.

    This counts the bytes that begin them, also inside of strings, so the true number may be
    smaller. A field counts as an eighth of an object, because it takes an eighth of the time.
    """
    number = 0
    for chunk in chunks:
        number += chunk.count(b"{") + chunk.count(b"[") + chunk.count(b'":') // 8
    return number


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
    if logger.isEnabledFor(logging.DEBUG):
        if unknown := decoder.list_unknown_fields(content):
            # As vLLM does.
            logger.debug(
                "request %s: ignored unknown fields: %s",
                request_id,
                escape(", ".join(unknown)),
            )
    return body


def join_chunks(chunks: list[bytes | bytearray]) -> bytes:
    """Join the parts of a body, and empty `chunks`.

    Raises:
      MemoryFull: the system has no memory for that, or for the texts of the body.
    """
    try:
        content = b"".join(chunks)
        if len(content) > _SMALL_BYTES:
            # msgspec 0.22 ends the process if it cannot allocate a text. The pages of these
            # zeros are never touched, so they cost microseconds.
            bytes(_BYTES_PER_CHARACTER * len(content))
    except MemoryError:
        raise MemoryFull("bodies") from None
    chunks.clear()
    return content
