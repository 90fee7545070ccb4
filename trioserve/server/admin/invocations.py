"""POST /invocations: SageMaker's one path for all requests, which their fields tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
from quart import Response

from ...api.chat.handler import answer_chat
from ...api.completions.handler import answer_completion
from ...api.decode.body import join_chunks, run_decoding, wait_body
from ...api.decode.counting import check_size
from ...api.pooling.embeddings import answer_classify, answer_embeddings, answer_pooling
from ...api.pooling.requests import QUERY_FIELDS
from ...api.pooling.score import answer_rerank, answer_score
from ...errors import InvalidParameter
from ...frontend import PoolingEngine, TextEngine
from ...http.route import Handler
from ...http.scope import ScopedRequest
from ...http.state import ServerState

# Fields, and the endpoint of a body that has one of them. The first field that is there counts.
_HANDLERS: Final[Mapping[str, Handler]] = {
    "messages": answer_chat,
    "prompt": answer_completion,
    "query": answer_rerank,
    **dict.fromkeys(QUERY_FIELDS, answer_score),
    "input": answer_pooling,
}

# The endpoint of texts and chats that are pooled, by the task of the model.
_BY_TASK: Final[Mapping[str, Handler]] = {
    "embed": answer_embeddings,
    "classify": answer_classify,
}

_Fields = msgspec.defstruct(
    "_Fields",
    [(name, msgspec.Raw, msgspec.Raw()) for name in ("task", *_HANDLERS)],
)


async def answer_invocation(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a body of any other endpoint that the model serves."""
    chunks = await wait_body(state, request)
    engine = await state.require_engine(request.model)
    look = partial(_look, chunks, engine)
    content, handler = await run_decoding(engine, look, chunks)
    request.body.put_back(content)
    return await handler(state, request)


def _look(
    chunks: list[bytes | bytearray], engine: TextEngine | PoolingEngine
) -> tuple[bytes, Handler]:
    content = join_chunks(chunks)
    check_size(None, content)
    return content, _choose_handler(content, _list_handlers(engine))


def _list_handlers(engine: TextEngine | PoolingEngine) -> Mapping[str, Handler]:
    """Return the endpoints by the fields of their bodies.

    Those that the model does not serve are among them, because their errors say so.
    """
    if isinstance(engine, TextEngine):
        return _HANDLERS
    pool = _BY_TASK.get(engine.pooling.task, answer_pooling)
    return {"task": answer_pooling, **_HANDLERS, "messages": pool, "input": pool}


def _choose_handler(content: bytes, handlers: Mapping[str, Handler]) -> Handler:
    try:
        fields = msgspec.json.decode(content, type=_Fields)
    except (ValueError, RecursionError):
        # Any endpoint can name the mistake.
        return next(iter(handlers.values()))
    for name, handler in handlers.items():
        if bytes(getattr(fields, name)) not in (b"", b"null"):
            return handler
    raise InvalidParameter(None, f"The body needs one of {', '.join(handlers)}.")
