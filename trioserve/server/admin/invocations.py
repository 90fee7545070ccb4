"""POST /invocations: SageMaker's one path for all requests, which their fields tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import Final

import msgspec
from quart import Response

from ...api.chat.handler import answer_chat
from ...api.completions.handler import answer_completion
from ...api.decode.body import join_chunks, run_decoding, take_limits, wait_body
from ...api.decode.counting import check_size
from ...api.decode.fields import ModelRequest, Seconds
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

_FIELD_NAMES: Final = ("task", *_HANDLERS)

_Fields = msgspec.defstruct(
    "_Fields",
    [(name, msgspec.Raw, msgspec.Raw()) for name in ("model", *_FIELD_NAMES)],
)


class _Limits(ModelRequest, frozen=True, kw_only=True):
    """The time limits of any body, which count before its endpoint is known."""

    max_queue_seconds: Seconds | None = None


async def answer_invocation(state: ServerState, request: ScopedRequest) -> Response:
    """Answer a body of any other endpoint that the model serves."""
    chunks = await wait_body(state, request)
    content, model, fields, limits = await run_decoding(
        state.find_workers(), partial(_look, chunks), chunks
    )
    take_limits(request, limits)
    engine = await state.require_engine(request.model, model)
    handler = _choose_handler(fields, _list_handlers(engine))
    request.body.put_back(content)
    return await handler(state, request)


def _look(
    chunks: list[bytes | bytearray],
) -> tuple[bytes, str | None, Set[str] | None, _Limits]:
    """Return a body, its model, the fields that it has, and its limits.

    The fields are None if it cannot be read.
    """
    content = join_chunks(chunks)
    check_size(None, content)
    try:
        fields = msgspec.json.decode(content, type=_Fields)
        name = msgspec.json.decode(getattr(fields, "model") or b"null")
    except (ValueError, RecursionError):
        # Any endpoint can name the mistake.
        return content, None, None, _Limits()
    found = {
        each
        for each in _FIELD_NAMES
        if bytes(getattr(fields, each)) not in (b"", b"null")
    }
    try:
        limits = msgspec.json.decode(content, type=_Limits)
    except msgspec.ValidationError:
        # The endpoint names the mistake.
        limits = _Limits()
    return content, name if isinstance(name, str) else None, found, limits


def _list_handlers(engine: TextEngine | PoolingEngine) -> Mapping[str, Handler]:
    """Return the endpoints by the fields of their bodies.

    Those that the model does not serve are among them, because their errors say so.
    """
    if isinstance(engine, TextEngine):
        return _HANDLERS
    pool = _BY_TASK.get(engine.pooling.task, answer_pooling)
    return {"task": answer_pooling, **_HANDLERS, "messages": pool, "input": pool}


def _choose_handler(
    fields: Set[str] | None, handlers: Mapping[str, Handler]
) -> Handler:
    if fields is None:
        return next(iter(handlers.values()))
    for name, handler in handlers.items():
        if name in fields:
            return handler
    raise InvalidParameter(None, f"The body needs one of {', '.join(handlers)}.")
