"""The table of decoders: how the body of each request struct is decoded.

A struct without a row is decoded as it is: no field is refused, and none is lazy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final

from . import foreign_fields, ignored, unsupported
from ..anthropic.client_tools import decode_client_tools
from ..anthropic.output_config import decode_output_config
from ..anthropic.payloads import TURN_PAYLOADS
from ..anthropic.requests import (
    CountTokensRequest,
    MessagesRequest,
)
from ..chat.request import ChatRequest
from ..completions.request import CompletionRequest
from ..pooling.inputs import (
    decode_chats,
    decode_documents,
    decode_inputs,
    decode_query,
    decode_score_texts,
    decode_texts,
    decode_wrapped,
)
from ..pooling.requests import (
    DOCUMENT_FIELDS,
    QUERY_FIELDS,
    ClassificationRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from ..responses.payloads import RESPONSE_PAYLOADS
from ..responses.request import ResponseRequest
from ..tokens.requests import (
    DetokenizeRequest,
    TokenizeRequest,
)
from .decoder import UNBOUNDED, BodyDecoder, DecodeField, RequestT
from .free_form import (
    decode_flat_tool_choice,
    decode_flat_tools,
    decode_processors,
    decode_structure,
    decode_template_kwargs,
    decode_text_config,
    decode_tool_choice,
    decode_tools,
)
from .lazy_fields import decode_embeds_list, decode_ids, decode_prompt
from .structured import STRUCTURE_FIELDS

_TEMPLATE_FIELDS: Final[Mapping[str, DecodeField]] = {
    "chat_template_kwargs": decode_template_kwargs,
    "tools": decode_tools,
    "tool_choice": decode_tool_choice,
}
_TURN_FIELDS: Final[Mapping[str, DecodeField]] = {
    "tools": decode_client_tools,
    "output_config": decode_output_config,
    "chat_template_kwargs": decode_template_kwargs,
}
_STRUCTURE_FIELDS: Final = dict.fromkeys(STRUCTURE_FIELDS, decode_structure)
_TEXT_FIELDS: Final = {
    "input": decode_inputs,
    "messages": decode_chats,
    "chat_template_kwargs": decode_template_kwargs,
}

# Texts that are pooled may be truncated or read in chunks, as the request or the server's
# options say. So only the renderer refuses texts that are too long for the model.
_CohereDecoder: Final = partial(BodyDecoder, bounds_ids=False, payloads=None)
_PoolingDecoder: Final = partial(
    _CohereDecoder, foreign=foreign_fields.POOLING, ignored=ignored.POOLING
)
_VectorDecoder: Final = partial(_PoolingDecoder, foreign=foreign_fields.VECTORS)

_DECODERS: Final[dict[type, BodyDecoder[Any]]] = {
    ChatRequest: BodyDecoder(
        ChatRequest,
        unsupported.CHAT,
        {
            "logits_processors": decode_processors,
            **_TEMPLATE_FIELDS,
            **_STRUCTURE_FIELDS,
        },
        foreign=foreign_fields.CHAT,
        ignored=ignored.CHAT,
    ),
    CompletionRequest: BodyDecoder(
        CompletionRequest,
        unsupported.COMPLETION,
        {
            "logits_processors": decode_processors,
            "prompt": decode_prompt,
            "prompt_embeds": decode_embeds_list,
            **_STRUCTURE_FIELDS,
        },
        foreign=foreign_fields.COMPLETION,
        ignored=ignored.COMPLETION,
    ),
    ResponseRequest: BodyDecoder(
        ResponseRequest,
        unsupported.RESPONSE,
        {
            "logits_processors": decode_processors,
            **_TEMPLATE_FIELDS,
            "tools": decode_flat_tools,
            "text": decode_text_config,
            "tool_choice": decode_flat_tool_choice,
        },
        foreign=foreign_fields.RESPONSE,
        ignored=ignored.RESPONSE,
        payloads=RESPONSE_PAYLOADS,
    ),
    TokenizeRequest: BodyDecoder(
        TokenizeRequest, unsupported.TOKENIZE, _TEMPLATE_FIELDS
    ),
    DetokenizeRequest: BodyDecoder(DetokenizeRequest, lazy={"tokens": decode_ids}),
    MessagesRequest: BodyDecoder(
        MessagesRequest,
        unsupported.MESSAGES,
        _TURN_FIELDS,
        foreign=foreign_fields.MESSAGES,
        ignored=ignored.MESSAGES,
        payloads=TURN_PAYLOADS,
    ),
    CountTokensRequest: BodyDecoder(
        CountTokensRequest,
        unsupported.COUNT_TOKENS,
        _TURN_FIELDS,
        ignored=ignored.COUNT_TOKENS,
        payloads=TURN_PAYLOADS,
    ),
    EmbeddingRequest: _VectorDecoder(
        EmbeddingRequest, unsupported.POOLING, _TEXT_FIELDS
    ),
    PoolingRequest: _VectorDecoder(PoolingRequest, unsupported.POOLING, _TEXT_FIELDS),
    ClassificationRequest: _PoolingDecoder(
        ClassificationRequest, unsupported.POOLING, _TEXT_FIELDS
    ),
    ScoreRequest: _PoolingDecoder(
        ScoreRequest,
        unsupported.SCORING,
        dict.fromkeys((*QUERY_FIELDS, *DOCUMENT_FIELDS), decode_score_texts),
    ),
    RerankRequest: _PoolingDecoder(
        RerankRequest,
        unsupported.SCORING,
        {"query": decode_query, "documents": decode_documents},
    ),
    CohereEmbedRequest: _CohereDecoder(
        CohereEmbedRequest,
        unsupported.COHERE_EMBED,
        {"texts": decode_texts, "inputs": decode_wrapped},
    ),
}


def decode_body(
    request_type: type[RequestT],
    body: bytes,
    max_model_len: int = UNBOUNDED,
    *,
    ignores_unknown_tools: bool = False,
) -> RequestT:
    """Decode a body into a request struct; raises as BodyDecoder.decode does.

    Args:
      max_model_len: a prompt with this many token ids is refused.
      ignores_unknown_tools: tools that the client does not run itself are left out.
    """
    decoder = find_decoder(request_type)
    if ignores_unknown_tools:
        decoder = decoder.tolerant
    return decoder.decode(body, max_model_len)


def find_decoder(request_type: type[RequestT]) -> BodyDecoder[RequestT]:
    """Return the decoder of a request struct."""
    if request_type in _DECODERS:
        return _DECODERS[request_type]
    return _make_decoder(request_type)


# A decoder takes a millisecond to make.
@cache
def _make_decoder(request_type: type[RequestT]) -> BodyDecoder[RequestT]:
    return BodyDecoder(request_type)
