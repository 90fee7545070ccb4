"""The endpoints of models that pool."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import BYTES, JSON
from .answers import (
    ClassificationList,
    EmbeddingList,
    PooledList,
    RankedList,
    ScoreList,
)
from .body import (
    CLASSIFICATION_BODY,
    EMBEDDING_BODY,
    POOLING_BODY,
    RERANK_BODY,
    SCORE_BODY,
)
from .embeddings import answer_classify, answer_embeddings, answer_pooling
from .score import answer_rerank, answer_score

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v1/embeddings",),
        handler=answer_embeddings,
        summary="Embed a string, token ids, chats, or lists of them.",
        bodies=(EMBEDDING_BODY,),
        example={"input": ["A text.", "Another text."]},
        answers={JSON: EmbeddingList, BYTES: None},
    ),
    Route(
        method="POST",
        paths=("/pooling",),
        handler=answer_pooling,
        summary="Give vectors or labels of texts, or of each of their tokens.",
        bodies=(POOLING_BODY,),
        example={"input": "A text."},
        answers={JSON: PooledList, BYTES: None},
    ),
    Route(
        method="POST",
        paths=("/classify",),
        handler=answer_classify,
        summary="Label texts.",
        bodies=(CLASSIFICATION_BODY,),
        example={"input": "A text."},
        answers={JSON: ClassificationList},
    ),
    Route(
        method="POST",
        paths=("/score", "/v1/score"),
        handler=answer_score,
        summary="Compare a query with each document, or compare pairs.",
        bodies=(SCORE_BODY,),
        example={"text_1": "A question?", "text_2": ["A text."]},
        answers={JSON: ScoreList},
    ),
    Route(
        method="POST",
        paths=("/rerank", "/v1/rerank", "/v2/rerank"),
        handler=answer_rerank,
        summary="Sort documents by how well they answer a query.",
        bodies=(RERANK_BODY,),
        example={"query": "A question?", "documents": ["A text.", "Another."]},
        answers={JSON: RankedList},
    ),
)
