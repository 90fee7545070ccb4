"""POST /api/embed and POST /api/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from quart import Response
import trio

from ...frontend import Pooled
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.error_body import encode
from ...http.wire.respond import respond_json
from ...render import TextOptions
from ...render.pooling.vectors import write_json
from ...types.pooling import PoolingParams
from ...types.tensors import TensorBytes
from ..pooling.answers import splice
from ..pooling.steps import PoolingCall, make_params, require_task
from .answers import OllamaEmbedding, OllamaEmbeddings
from .body import OLLAMA_EMBED_BODY, OLLAMA_EMBEDDING_BODY, read_ollama
from .chat import check_context
from .events import count_nanoseconds


async def answer_ollama_embed(state: ServerState, request: ScopedRequest) -> Response:
    """Embed texts: a vector of length 1 for each."""
    body, engine = await read_ollama(
        state, request, OLLAMA_EMBED_BODY, state.require_pooling
    )
    check_context(body.options, engine)
    task = require_task(engine, ("embed",), "embed texts")
    params = make_params(engine, task, dimensions=body.dimensions, use_activation=True)
    call = PoolingCall(state=state, request=request, engine=engine)
    if not body.texts:
        body.check_load()
        return respond_json(_measure(request, body.model))
    pooled = await _pool(
        call, body.texts, params, "input", is_cut=body.truncate is not False
    )
    content = _measure(request, body.model, pooled.num_tokens)
    vectors = pooled.results
    return await call.respond(
        partial(splice, content, {"embeddings": vectors}), sum(map(len, vectors))
    )


def _measure(
    request: ScopedRequest, model: str, num_tokens: int = 0
) -> OllamaEmbeddings:
    return OllamaEmbeddings(
        model=model,
        total_duration=count_nanoseconds(trio.current_time() - request.arrived_at),
        load_duration=count_nanoseconds(request.model.load_seconds),
        prompt_eval_count=num_tokens,
    )


async def answer_ollama_embedding(
    state: ServerState, request: ScopedRequest
) -> Response:
    """Embed a text, as the model's own vector."""
    body, engine = await read_ollama(
        state, request, OLLAMA_EMBEDDING_BODY, state.require_pooling
    )
    check_context(body.options, engine)
    task = require_task(engine, ("embed",), "embed texts")
    params = make_params(engine, task)
    call = PoolingCall(state=state, request=request, engine=engine)
    if not body.prompt:
        body.check_load()
        return respond_json(OllamaEmbedding(embedding=msgspec.Raw(b"[]")))
    pooled = await _pool(call, (body.prompt,), params, "prompt", is_cut=True)
    [vector] = pooled.results
    content = OllamaEmbedding(embedding=msgspec.Raw(vector))
    return await call.respond(partial(encode, content), len(vector))


async def _pool(
    call: PoolingCall,
    texts: Sequence[str],
    params: PoolingParams,
    param: str,
    *,
    is_cut: bool,
) -> Pooled[bytes]:
    pooled = await call.engine.pool(
        texts,
        params,
        TextOptions(long_text="truncate" if is_cut else "refuse"),
        finish=_write_vector,
        client=call.client,
        limits=call.limits,
        param=param,
        on_submit=call.note_submitted,
    )
    call.note_pooled(pooled.num_tokens)
    call.request.body.release()
    return pooled


def _write_vector(index: int, tensor: TensorBytes) -> bytes:
    return write_json(tensor)
