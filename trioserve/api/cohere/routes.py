"""The endpoints of Cohere's API."""

from __future__ import annotations

from typing import Final

from ...http.route import Route
from ...http.wire.respond import JSON
from .answers import CohereEmbeddings, CohereFloats
from .handler import answer_embed, answer_embed_v1
from .requests import COHERE_EMBED_BODY

_EXAMPLE: Final = {
    "model": "MODEL",
    "texts": ["A text."],
    "input_type": "search_document",
    "embedding_types": ["float"],
}

ROUTES: Final = (
    Route(
        method="POST",
        paths=("/v2/embed",),
        handler=answer_embed,
        summary="Embed texts, in the form of Cohere's second API.",
        bodies=(COHERE_EMBED_BODY,),
        example=_EXAMPLE,
        answers={JSON: CohereEmbeddings},
    ),
    Route(
        method="POST",
        paths=("/v1/embed",),
        handler=answer_embed_v1,
        summary="Embed texts, in the form of Cohere's first API.",
        bodies=(COHERE_EMBED_BODY,),
        example=_EXAMPLE,
        answers={JSON: CohereFloats},
    ),
)
