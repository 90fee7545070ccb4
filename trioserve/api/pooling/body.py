"""The decoders of requests to models that pool, and the fields that they refuse or ignore."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from ..decode.decoder import BodyDecoder, DecodeField
from ..decode.errors import Neutral, Refused
from ..shared.message_mappings import decode_template_kwargs
from .inputs import (
    decode_chats,
    decode_documents,
    decode_inputs,
    decode_query,
    decode_score_texts,
)
from .requests import (
    DOCUMENT_FIELDS,
    QUERY_FIELDS,
    ClassificationRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)

_UNSUPPORTED: Final[Mapping[str, Neutral]] = {
    "padding": ("do_not_pad",),
    "normalize": (),
    "late_chunking_params": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    # For plug-ins of vLLM.
    "data": (),
}

_UNSUPPORTED_SCORING: Final[Mapping[str, Neutral]] = {
    **_UNSUPPORTED,
    # For templates of pairs.
    "instruction": ("",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    # For Cohere's models.
    "rank_fields": ([],),
    "max_chunks_per_doc": (),
    "relevant_spans": (),
}

_ADVICE: Final = {"normalize": "send use_activation"}

# Text Embeddings Inference's and Voyage's
_FOREIGN: Final[Mapping[str, Refused]] = {
    "truncate": ("send truncate_prompt_tokens -1", (False,)),
    "truncation": ("send truncate_prompt_tokens -1", (False,)),
}

# Cohere's, Voyage's and Jina's
_FOREIGN_VECTORS: Final[Mapping[str, Refused]] = {
    **_FOREIGN,
    "input_type": ("send prompt_name", ()),
    "output_dimension": ("send dimensions", ()),
    "embedding_type": ("send encoding_format", ("float",)),
}

_TEXT_FIELDS: Final[Mapping[str, DecodeField]] = {
    "input": decode_inputs,
    "messages": decode_chats,
    "chat_template_kwargs": decode_template_kwargs,
}

# Texts that are pooled may be truncated or read in chunks, as the request or the server's
# options say. So only the renderer refuses texts that are too long for the model.
_Decoder: Final = partial(
    BodyDecoder,
    bounds_ids=False,
    advice=_ADVICE,
    # Requests that pool share no cache.
    ignored=frozenset({"cache_salt", "user"}),
)

EMBEDDING_BODY: Final = _Decoder(
    EmbeddingRequest, _TEXT_FIELDS, refused=_UNSUPPORTED, foreign=_FOREIGN_VECTORS
)
POOLING_BODY: Final = _Decoder(
    PoolingRequest, _TEXT_FIELDS, refused=_UNSUPPORTED, foreign=_FOREIGN_VECTORS
)
CLASSIFICATION_BODY: Final = _Decoder(
    ClassificationRequest, _TEXT_FIELDS, refused=_UNSUPPORTED, foreign=_FOREIGN
)
SCORE_BODY: Final = _Decoder(
    ScoreRequest,
    dict.fromkeys((*QUERY_FIELDS, *DOCUMENT_FIELDS), decode_score_texts),
    refused=_UNSUPPORTED_SCORING,
    foreign=_FOREIGN,
)
RERANK_BODY: Final = _Decoder(
    RerankRequest,
    {"query": decode_query, "documents": decode_documents},
    refused=_UNSUPPORTED_SCORING,
    foreign=_FOREIGN,
)
