"""JSON in, requests out; see schema.py."""

from __future__ import annotations

from typing import Final

from . import unsupported
from .pooling_inputs import (
    decode_chats,
    decode_documents,
    decode_inputs,
    decode_query,
    decode_score_texts,
    decode_texts,
    decode_wrapped,
)
from .pooling_requests import (
    DOCUMENT_FIELDS,
    QUERY_FIELDS,
    ClassificationRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from .schema import UNBOUNDED, BodyDecoder, decode_template_kwargs

# The model's length bounds no field here: longer texts may be cut, or read in chunks,
# and which it is the server's options say where a request does not. The renderer
# refuses what is too long for the model.


def decode_embedding(body: bytes, max_model_len: int = UNBOUNDED) -> EmbeddingRequest:
    """Read the body of POST /v1/embeddings.

    Raises:
      InvalidParameter: it is not JSON, or a field has the wrong type or length.
      NotSupported: a field asks for what this server does not do.
    """
    return _EMBEDDING.decode(body, UNBOUNDED)


def decode_pooling(body: bytes, max_model_len: int = UNBOUNDED) -> PoolingRequest:
    """Read the body of POST /pooling; raises as decode_embedding does."""
    return _POOLING.decode(body, UNBOUNDED)


def decode_classification(
    body: bytes, max_model_len: int = UNBOUNDED
) -> ClassificationRequest:
    """Read the body of POST /classify; raises as decode_embedding does."""
    return _CLASSIFICATION.decode(body, UNBOUNDED)


def decode_score(body: bytes, max_model_len: int = UNBOUNDED) -> ScoreRequest:
    """Read the body of POST /score; raises as decode_embedding does."""
    return _SCORE.decode(body, UNBOUNDED)


def decode_rerank(body: bytes, max_model_len: int = UNBOUNDED) -> RerankRequest:
    """Read the body of POST /rerank; raises as decode_embedding does."""
    return _RERANK.decode(body, UNBOUNDED)


def decode_cohere_embed(
    body: bytes, max_model_len: int = UNBOUNDED
) -> CohereEmbedRequest:
    """Read the body of POST /v2/embed; raises as decode_embedding does."""
    return _COHERE_EMBED.decode(body, UNBOUNDED)


_TEXT_FIELDS: Final = {
    "input": decode_inputs,
    "messages": decode_chats,
    "chat_template_kwargs": decode_template_kwargs,
}
_EMBEDDING: Final = BodyDecoder(
    EmbeddingRequest, unsupported.POOLING, _TEXT_FIELDS, takes_payloads=False
)
_POOLING: Final = BodyDecoder(
    PoolingRequest, unsupported.POOLING, _TEXT_FIELDS, takes_payloads=False
)
_CLASSIFICATION: Final = BodyDecoder(
    ClassificationRequest, unsupported.POOLING, _TEXT_FIELDS, takes_payloads=False
)
_SCORE: Final = BodyDecoder(
    ScoreRequest,
    unsupported.SCORING,
    dict.fromkeys((*QUERY_FIELDS, *DOCUMENT_FIELDS), decode_score_texts),
    takes_payloads=False,
)
_RERANK: Final = BodyDecoder(
    RerankRequest,
    unsupported.SCORING,
    {"query": decode_query, "documents": decode_documents},
    takes_payloads=False,
)
_COHERE_EMBED: Final = BodyDecoder(
    CohereEmbedRequest,
    unsupported.COHERE_EMBED,
    {"texts": decode_texts, "inputs": decode_wrapped},
    takes_payloads=False,
)
