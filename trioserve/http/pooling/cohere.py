"""POST /v2/embed and POST /v1/embed, as Cohere's clients call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from quart import Response

from ...errors import InvalidParameter
from ...pooling_engine import Pooled, PoolingEngine
from ...render import TextOptions
from ...render.pooling.vectors import VectorFormat, pack_bits, write_base64, write_json
from ...steps import TensorBytes
from ..body import read_pooling_request
from ..responses import encode
from ..scope import ScopedRequest
from ..state import ServerState
from .requests import COHERE_TYPES, CohereEmbedRequest, CohereType
from .responses import (
    CohereEmbeddings,
    CohereFloats,
    CohereMeta,
    CohereVectors,
    splice,
)
from .schema import decode_cohere_embed
from .serving import Exchange, Header, make_params, require_task

# What Cohere's models are trained for. Others need not tell these apart, and are read
# the same way for all of them then.
_TRAINED_TYPES: Final = ("classification", "clustering")

_BASE64: Final = VectorFormat(encoding="base64", endianness="little")

_WRITERS: Final[dict[CohereType, Callable[[TensorBytes], bytes]]] = {
    "float": write_json,
    "binary": partial(pack_bits, signed=True),
    "ubinary": partial(pack_bits, signed=False),
    "base64": partial(write_base64, format=_BASE64),
}


async def answer_embed(state: ServerState, request: ScopedRequest) -> Response:
    """Embed texts, in each of the forms that are asked for."""
    asked, engine = await read_pooling_request(state, request, decode_cohere_embed)
    exchange = Exchange(state=state, request=request, engine=engine)
    header = exchange.make_header("embd")
    pooled = await _pool(exchange, asked)
    meta = CohereMeta.of(pooled.num_tokens, "2")
    return await _respond_by_type(exchange, asked, header, meta, pooled.results)


async def answer_embed_v1(state: ServerState, request: ScopedRequest) -> Response:
    """Do the same for older clients; vectors have no names where no form is asked for."""
    asked, engine = await read_pooling_request(state, request, decode_cohere_embed)
    exchange = Exchange(state=state, request=request, engine=engine)
    header = exchange.make_header("embd")
    pooled = await _pool(exchange, asked)
    meta = CohereMeta.of(pooled.num_tokens, "1")
    if asked.embedding_types:
        return await _respond_by_type(exchange, asked, header, meta, pooled.results)
    content = CohereFloats(id=header.id, texts=_echo(asked), meta=meta)
    lists = {"embeddings": [vector for (vector,) in pooled.results]}
    return await _respond(exchange, asked, content, lists)


async def _pool(
    exchange: Exchange, asked: CohereEmbedRequest
) -> Pooled[tuple[bytes, ...]]:
    """Have the texts read, and each vector written in all forms."""
    engine = exchange.engine
    task = require_task(engine, ("embed",), "embed texts")
    params = make_params(
        engine, task, dimensions=asked.output_dimension, param="output_dimension"
    )
    _check_bits(asked, asked.output_dimension or engine.pooling.num_outputs)
    return await engine.pool(
        asked.plain_texts,
        params,
        _make_options(asked, engine),
        finish=partial(_write_vector, asked.types),
        priority=asked.priority or 0,
        param=asked.param,
        on_submit=exchange.note_submitted,
    )


def _check_bits(asked: CohereEmbedRequest, size: int) -> None:
    """Refuse to pack what leaves a byte half full, before anything is computed."""
    if size % 8 and {"binary", "ubinary"} & set(asked.types):
        raise InvalidParameter(
            "embedding_types",
            f"bits are packed by eight, and these vectors have {size} numbers",
        )


def _make_options(asked: CohereEmbedRequest, engine: PoolingEngine) -> TextOptions:
    kind, prompt_name = _read_input_type(asked.input_type, engine)
    limit = asked.max_tokens
    return TextOptions(
        truncate_to=limit and min(limit, engine.info.max_model_len),
        truncation_side="left" if asked.truncate == "START" else "right",
        long_text="refuse" if asked.truncate == "NONE" else "truncate",
        kind=kind,
        prompt_name=prompt_name,
    )


def _read_input_type(
    input_type: str | None, engine: PoolingEngine
) -> tuple[Literal["query", "document"] | None, str | None]:
    """Say what texts are for: the kind that models tell apart, or a prompt's name."""
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
    raise InvalidParameter("input_type", f"must be one of {', '.join(known)}")


def _write_vector(
    types: Sequence[CohereType], index: int, tensor: TensorBytes
) -> tuple[bytes, ...]:
    return tuple(_WRITERS[name](tensor) for name in types)


async def _respond_by_type(
    exchange: Exchange,
    asked: CohereEmbedRequest,
    header: Header,
    meta: CohereMeta,
    vectors: Sequence[tuple[bytes, ...]],
) -> Response:
    # Each form's vectors, for those of each text.
    by_type = dict(zip(asked.types, zip(*vectors)))
    content = CohereEmbeddings(
        id=header.id,
        embeddings=CohereVectors(
            **{"float_" if name == "float" else name: () for name in by_type}
        ),
        texts=_echo(asked),
        meta=meta,
    )
    # In the order of the answer's fields.
    lists: dict[str, Sequence[bytes]] = {
        name: by_type[name] for name in COHERE_TYPES if name in by_type
    }
    return await _respond(exchange, asked, content, lists)


def _echo(asked: CohereEmbedRequest) -> tuple[()] | UnsetType:
    """The place of the texts in an answer, where they came as such."""
    return () if asked.texts else UNSET


async def _respond(
    exchange: Exchange,
    asked: CohereEmbedRequest,
    content: msgspec.Struct,
    lists: Mapping[str, Sequence[bytes]],
) -> Response:
    # The texts are written once more: the body is held until the answer is sent.
    texts = asked.plain_texts if asked.texts else ()
    num_bytes = sum(map(len, texts))
    num_bytes += sum(len(entry) for entries in lists.values() for entry in entries)

    def write() -> bytes:
        echoed = {"texts": [encode(text) for text in texts]} if texts else {}
        return splice(content, {**lists, **echoed})

    return await exchange.respond(write, num_bytes)
