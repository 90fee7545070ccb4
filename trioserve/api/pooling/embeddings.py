"""POST /v1/embeddings and POST /pooling: vectors as numbers, base64 or bytes.

And POST /classify: labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
import json
from typing import Any, Final

import msgspec
from quart import Response

from ...errors import InvalidParameter
from ...frontend import PoolingEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.error_body import encode
from ...http.wire.respond import BYTES
from ...render.pooling.vectors import (
    VectorFormat,
    read_floats,
    write_base64,
    write_bytes,
    write_json,
)
from ...types.pooling import PoolingParams
from ...types.tensors import TensorBytes
from ..decode.body import read_request
from .answers import (
    BriefUsage,
    BytesData,
    BytesMetadata,
    ClassificationList,
    ClassifiedText,
    Embedding,
    EmbeddingList,
    PooledAnswer,
    PooledData,
    PooledList,
    splice,
)
from .body import CLASSIFICATION_BODY, EMBEDDING_BODY, POOLING_BODY
from .requests import VectorFields
from .steps import Header, PoolingCall, make_params, pool_texts, require_task

# Half of the longest line that Python's http.client reads. The default limit of aiohttp
# and of many proxies is 8 KiB.
MAX_METADATA_BYTES: Final = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The JSON form of an endpoint's vectors."""

    prefix: str
    make_entry: Callable[[int, msgspec.Raw], msgspec.Struct]
    answer_type: type[PooledAnswer[Any]]


_EMBEDDINGS: Final = _Form(
    prefix="embd",
    make_entry=lambda index, vector: Embedding(index=index, embedding=vector),
    answer_type=EmbeddingList,
)
_POOLED: Final = _Form(
    prefix="pool",
    make_entry=lambda index, vector: PooledData(index=index, data=vector),
    answer_type=PooledList,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vector:
    """The bytes of one input's vectors, and their shape in numbers."""

    content: bytes
    shape: tuple[int, ...]


async def answer_embeddings(state: ServerState, request: ScopedRequest) -> Response:
    """Embed texts: one vector for each text, or for each of its tokens."""
    body, engine = await read_request(
        state, request, EMBEDDING_BODY, state.require_pooling
    )
    task = require_task(engine, ("embed", "token_embed"), "embed texts")
    params = make_params(
        engine, task, dimensions=body.dimensions, use_activation=body.use_activation
    )
    call = PoolingCall(state=state, request=request, engine=engine)
    return await _answer(call, body, params, _EMBEDDINGS)


async def answer_pooling(state: ServerState, request: ScopedRequest) -> Response:
    """Give vectors or labels of texts, or of each of their tokens."""
    body, engine = await read_request(
        state, request, POOLING_BODY, state.require_pooling
    )
    task = body.task or engine.pooling.task
    params = make_params(
        engine, task, dimensions=body.dimensions, use_activation=body.use_activation
    )
    call = PoolingCall(state=state, request=request, engine=engine)
    return await _answer(call, body, params, _POOLED)


async def _answer(
    call: PoolingCall, body: VectorFields, params: PoolingParams, form: _Form
) -> Response:
    if body.encoding_format in ("bytes", "bytes_only"):
        return await _answer_bytes(call, body, params, form.prefix)
    header = call.make_header(form.prefix, body.request_id)
    format = _make_format(body)
    pooled = await pool_texts(
        call, body, params, partial(_write_entry, form.make_entry, format)
    )
    content = header.begin(form.answer_type, pooled.num_tokens)
    return await call.respond(
        partial(splice, content, {"data": pooled.results}),
        sum(map(len, pooled.results)),
    )


def _make_format(body: VectorFields) -> VectorFormat:
    encoding = body.encoding_format or "float"
    return VectorFormat(
        encoding="bytes" if encoding == "bytes_only" else encoding,
        dtype=body.embed_dtype or "float32",
        endianness=body.endianness or "native",
    )


def _write_entry(
    make_entry: Callable[[int, msgspec.Raw], msgspec.Struct],
    format: VectorFormat,
    index: int,
    tensor: TensorBytes,
) -> bytes:
    if format.encoding == "base64":
        vector = write_base64(tensor, format)
    else:
        vector = write_json(tensor)
    return encode(make_entry(index, msgspec.Raw(vector)))


async def _answer_bytes(
    call: PoolingCall, body: VectorFields, params: PoolingParams, prefix: str
) -> Response:
    header = call.make_header(prefix, body.request_id)
    format = _make_format(body)
    has_metadata = body.encoding_format == "bytes"
    if has_metadata:
        # Too many texts are refused before anything is computed.
        _check_metadata(len(body.items) * _measure_entry(format))
    pooled = await pool_texts(call, body, params, partial(_write_vector, format))
    headers = {}
    if has_metadata:
        headers["metadata"] = _write_metadata(
            header, format, pooled.results, pooled.num_tokens
        )
        _check_metadata(len(headers["metadata"]))
    contents = [vector.content for vector in pooled.results]
    return await call.respond(
        partial(b"".join, contents),
        sum(map(len, contents)),
        content_type=BYTES,
        headers=headers,
    )


def _write_vector(format: VectorFormat, index: int, tensor: TensorBytes) -> _Vector:
    return _Vector(content=write_bytes(tensor, format), shape=tensor.shape)


def _write_metadata(
    header: Header, format: VectorFormat, vectors: Sequence[_Vector], num_tokens: int
) -> str:
    ends = accumulate(len(vector.content) for vector in vectors)
    metadata = BytesMetadata(
        id=header.id,
        created=header.created,
        model=header.model,
        data=tuple(
            _locate(format, index, vector, end)
            for index, (vector, end) in enumerate(zip(vectors, ends))
        ),
        usage=BriefUsage.of(num_tokens),
    )
    # Headers are ASCII, and json.dumps escapes a model's name that is not.
    return json.dumps(msgspec.to_builtins(metadata), separators=(",", ":"))


def _locate(format: VectorFormat, index: int, vector: _Vector, end: int) -> BytesData:
    return BytesData(
        index=index,
        embed_dtype=format.dtype,
        endianness=format.endianness,
        start=end - len(vector.content),
        end=end,
        shape=vector.shape,
    )


def _measure_entry(format: VectorFormat) -> int:
    """Return the least number of bytes that a vector takes in the header."""
    return len(encode(_locate(format, 0, _Vector(content=b"", shape=(1,)), 0)))


def _check_metadata(num_bytes: int) -> None:
    if num_bytes > MAX_METADATA_BYTES:
        raise InvalidParameter(
            "encoding_format",
            f"the header `metadata` would have {num_bytes} bytes or more, but clients "
            f"read {MAX_METADATA_BYTES} at most: send fewer texts, or bytes_only",
        )


async def answer_classify(state: ServerState, request: ScopedRequest) -> Response:
    """Label texts."""
    body, engine = await read_request(
        state, request, CLASSIFICATION_BODY, state.require_pooling
    )
    task = require_task(engine, ("classify",), "classify texts")
    params = make_params(engine, task, use_activation=body.use_activation)
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("classify", body.request_id)
    pooled = await pool_texts(call, body, params, partial(_write_label, engine))
    content = header.begin(ClassificationList, pooled.num_tokens)
    return await call.respond(
        partial(splice, content, {"data": pooled.results}),
        sum(map(len, pooled.results)),
    )


def _write_label(engine: PoolingEngine, index: int, tensor: TensorBytes) -> bytes:
    probs = read_floats(tensor)
    entry = ClassifiedText(
        index=index,
        label=engine.name_label(probs),
        probs=msgspec.Raw(write_json(tensor)),
        num_classes=len(probs),
    )
    return encode(entry)
