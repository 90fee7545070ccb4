"""POST /score and POST /rerank: scores of documents for a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from msgspec import UNSET
from quart import Response

from ...errors import InvalidParameter
from ...frontend import PoolingEngine, ScoreOptions
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.error_body import encode
from ..decode.body import read_request
from .answers import (
    BriefUsage,
    CohereMeta,
    Ranked,
    RankedDocument,
    RankedList,
    Score,
    ScoreList,
    splice,
)
from .body import RERANK_BODY, SCORE_BODY
from .requests import RerankRequest, ScoringFields
from .steps import PoolingCall, make_text_options

# The JSON of a score, or of a ranked result without its document.
_BYTES_PER_SCORE = 128


async def answer_score(state: ServerState, request: ScopedRequest) -> Response:
    """Score a query against documents, or pairs of both."""
    body, engine = await read_request(state, request, SCORE_BODY, state.require_pooling)
    query_param, document_param = body.query_param, body.document_param
    options = _make_options(body, engine, query_param, document_param)
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("score", body.request_id)
    scores = await engine.score(
        body.texts_of(query_param),
        body.texts_of(document_param),
        options,
        priority=body.priority or 0,
        client=call.client,
        limits=call.limits,
        on_submit=call.note_submitted,
    )
    call.note_pooled(scores.num_tokens)
    request.body.release()
    content = header.begin(ScoreList, scores.num_tokens)
    write = partial(_write_scores, content, scores.values)
    return await call.respond(write, len(scores.values) * _BYTES_PER_SCORE)


async def answer_rerank(state: ServerState, request: ScopedRequest) -> Response:
    """Sort documents by how well they answer a query."""
    body, engine = await read_request(
        state, request, RERANK_BODY, state.require_pooling
    )
    options = _make_options(body, engine, "query", "documents")
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("score", body.request_id)
    scores = await engine.score(
        [body.query_text],
        body.texts,
        options,
        priority=body.priority or 0,
        client=call.client,
        limits=call.limits,
        on_submit=call.note_submitted,
    )
    call.note_pooled(scores.num_tokens)
    version = "1" if request.path.startswith("/v1/") else "2"
    content = RankedList(
        id=header.id,
        model=header.model,
        usage=BriefUsage.of(scores.num_tokens),
        meta=CohereMeta.of(scores.num_tokens, version),
    )
    num_bytes = len(scores.values) * _BYTES_PER_SCORE
    # The answer repeats the texts, so the body is kept until the answer is sent.
    if body.shows_documents:
        num_bytes += sum(map(len, body.texts))
    return await call.respond(
        partial(_write_ranking, content, body, scores.values), num_bytes
    )


def _make_options(
    body: ScoringFields, engine: PoolingEngine, query_param: str, document_param: str
) -> ScoreOptions:
    if body.use_activation is False and engine.pooling.task != "classify":
        raise InvalidParameter(
            "use_activation", "vectors are always scaled to length 1 before comparison"
        )
    text = replace(
        make_text_options(body, engine),
        max_query_tokens=body.max_tokens_per_query or 0,
        max_document_tokens=body.max_tokens_per_doc or 0,
    )
    return ScoreOptions(
        text=text,
        use_activation=body.use_activation,
        query_param=query_param,
        document_param=document_param,
    )


def _write_scores(content: ScoreList, values: Sequence[float]) -> bytes:
    entries = [
        encode(Score(index=index, score=value)) for index, value in enumerate(values)
    ]
    return splice(content, {"data": entries})


def _write_ranking(
    content: RankedList, body: RerankRequest, values: Sequence[float]
) -> bytes:
    # The sort is stable: documents with equal scores keep their order.
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    entries = [
        encode(_rank(body, index, values[index]))
        for index in order[: body.top_n or None]
    ]
    return splice(content, {"results": entries})


def _rank(body: RerankRequest, index: int, value: float) -> Ranked:
    return Ranked(
        index=index,
        document=(
            RankedDocument(text=body.texts[index]) if body.shows_documents else UNSET
        ),
        relevance_score=value,
    )
