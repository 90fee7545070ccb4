"""POST /v2/embed and POST /v1/embed, the endpoints of Cohere's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from quart import Response

from ...errors import InvalidParameter, list_choices
from ...frontend import Pooled, PoolingEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.error_body import encode
from ...render import TextOptions
from ...render.pooling.vectors import VectorFormat, pack_bits, write_base64, write_json
from ...types.tensors import TensorBytes
from ..decode.body import read_request
from ..pooling.answers import CohereMeta, splice
from ..pooling.steps import Header, PoolingCall, make_params, require_task
from .answers import CohereEmbeddings, CohereFloats, CohereVectors
from .requests import COHERE_EMBED_BODY, COHERE_TYPES, CohereEmbedRequest, CohereType

# Input types that Cohere's models are trained for. Other models may have no prompt for
# them; then the texts are embedded without a prompt.
_TRAINED_TYPES: Final = ("classification", "clustering")

_BASE64: Final = VectorFormat(encoding="base64", endianness="little")

_WRITERS: Final[dict[CohereType, Callable[[TensorBytes], bytes]]] = {
    "float": write_json,
    "binary": partial(pack_bits, signed=True),
    "ubinary": partial(pack_bits, signed=False),
    "base64": partial(write_base64, format=_BASE64),
}


async def answer_embed(state: ServerState, request: ScopedRequest) -> Response:
    """Embed texts, in each requested form."""
    body, engine = await read_request(
        state, request, COHERE_EMBED_BODY, state.require_pooling
    )
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("embd")
    pooled = await _pool(call, body)
    meta = CohereMeta.of(pooled.num_tokens, "2")
    return await _respond_by_type(call, body, header, meta, pooled.results)


async def answer_embed_v1(state: ServerState, request: ScopedRequest) -> Response:
    """Embed texts for older clients.

    If they request no form, the answer is a plain list of vectors.
    """
    body, engine = await read_request(
        state, request, COHERE_EMBED_BODY, state.require_pooling
    )
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("embd")
    pooled = await _pool(call, body)
    meta = CohereMeta.of(pooled.num_tokens, "1")
    if body.embedding_types:
        return await _respond_by_type(call, body, header, meta, pooled.results)
    content = CohereFloats(id=header.id, texts=_echo(body), meta=meta)
    lists = {"embeddings": [vector for (vector,) in pooled.results]}
    return await _respond(call, body, content, lists)


async def _pool(
    call: PoolingCall, body: CohereEmbedRequest
) -> Pooled[tuple[bytes, ...]]:
    """Pool the texts, and write each vector in all requested forms."""
    engine = call.engine
    task = require_task(engine, ("embed",), "embed texts")
    params = make_params(
        engine, task, dimensions=body.output_dimension, param="output_dimension"
    )
    _check_bits(body, body.output_dimension or engine.pooling.num_outputs)
    pooled = await engine.pool(
        body.plain_texts,
        params,
        _make_options(body, engine),
        finish=partial(_write_vector, body.types),
        priority=body.priority or 0,
        client=call.client,
        limits=call.limits,
        param=body.param,
        on_submit=call.note_submitted,
    )
    call.note_pooled(pooled.num_tokens)
    return pooled


def _check_bits(body: CohereEmbedRequest, size: int) -> None:
    """Refuse to pack vectors whose last byte would be half full."""
    if size % 8 and {"binary", "ubinary"} & set(body.types):
        raise InvalidParameter(
            "embedding_types",
            f"bits are packed in groups of eight, but the vectors have {size} numbers",
        )


def _make_options(body: CohereEmbedRequest, engine: PoolingEngine) -> TextOptions:
    kind, prompt_name = _read_input_type(body.input_type, engine)
    limit = body.max_tokens
    return TextOptions(
        truncate_to=limit and min(limit, engine.info.max_model_len),
        truncation_side="left" if body.truncate == "START" else "right",
        long_text="refuse" if body.truncate == "NONE" else "truncate",
        kind=kind,
        prompt_name=prompt_name,
    )


def _read_input_type(
    input_type: str | None, engine: PoolingEngine
) -> tuple[Literal["query", "document"] | None, str | None]:
    """Return the kind of the texts, or the name of a prompt for them."""
    prompt_names = engine.renderer.prompt_names
    match input_type:
        case None:
            return None, None
        case "search_query":
            return "query", None
        case "search_document":
            return "document", None
        case name if name in prompt_names:
            return None, name
        case name if name in _TRAINED_TYPES:
            return None, None
    known = ("search_query", "search_document", *_TRAINED_TYPES, *prompt_names)
    raise InvalidParameter("input_type", list_choices(known, input_type))


def _write_vector(
    types: Sequence[CohereType], index: int, tensor: TensorBytes
) -> tuple[bytes, ...]:
    return tuple(_WRITERS[name](tensor) for name in types)


async def _respond_by_type(
    call: PoolingCall,
    body: CohereEmbedRequest,
    header: Header,
    meta: CohereMeta,
    vectors: Sequence[tuple[bytes, ...]],
) -> Response:
    # From the forms of each vector to the vectors of each form.
    by_type = dict(zip(body.types, zip(*vectors)))
    content = CohereEmbeddings(
        id=header.id,
        embeddings=CohereVectors(
            **{"float_" if name == "float" else name: () for name in by_type}
        ),
        texts=_echo(body),
        meta=meta,
    )
    # splice needs the order of the answer's fields.
    lists: dict[str, Sequence[bytes]] = {
        name: by_type[name] for name in COHERE_TYPES if name in by_type
    }
    return await _respond(call, body, content, lists)


def _echo(body: CohereEmbedRequest) -> tuple[()] | UnsetType:
    """Return an empty place for the texts, if the request sent plain texts."""
    return () if body.texts else UNSET


async def _respond(
    call: PoolingCall,
    body: CohereEmbedRequest,
    content: msgspec.Struct,
    lists: Mapping[str, Sequence[bytes]],
) -> Response:
    # The answer repeats the texts, so the body is kept until the answer is sent.
    texts = body.plain_texts if body.texts else ()
    num_bytes = sum(map(len, texts))
    num_bytes += sum(len(entry) for entries in lists.values() for entry in entries)

    def write() -> bytes:
        echoed = {"texts": [encode(text) for text in texts]} if texts else {}
        return splice(content, {**lists, **echoed})

    return await call.respond(write, num_bytes)
