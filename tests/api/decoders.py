"""The decoders of all endpoints, by the structs of their requests."""

from __future__ import annotations

from typing import Any, Final

from trioserve.api.decode.decoder import BodyDecoder
from trioserve.server.routes import ROUTES

DECODERS = {body.request_type: body for route in ROUTES for body in route.bodies}

_MESSAGES: Final = [{"role": "user", "content": "hi"}]

# The least body of each request.
MINIMAL: Final[dict[str, dict[str, Any]]] = {
    "ChatRequest": {"messages": _MESSAGES},
    "CompletionRequest": {"prompt": "hi"},
    "ResponseRequest": {"input": "hi"},
    "TokenizeRequest": {"prompt": "hi"},
    "DetokenizeRequest": {"tokens": [1]},
    "MessagesRequest": {"messages": _MESSAGES, "max_tokens": 1},
    "CountTokensRequest": {"messages": _MESSAGES},
    "EmbeddingRequest": {"input": "hi"},
    "PoolingRequest": {"input": "hi"},
    "ClassificationRequest": {"input": "hi"},
    "ScoreRequest": {"queries": "hi", "documents": "ho"},
    "RerankRequest": {"query": "hi", "documents": ["ho"]},
    "CohereEmbedRequest": {"texts": ["hi"]},
    "OllamaChatRequest": {"model": "fake"},
    "GenerateRequest": {"model": "fake"},
    "OllamaEmbedRequest": {"model": "fake"},
    "OllamaEmbeddingRequest": {"model": "fake"},
    "ShowRequest": {"model": "fake"},
    "LoadAdapterRequest": {"lora_name": "a", "lora_path": "b"},
    "UnloadAdapterRequest": {"lora_name": "a"},
    "ManageModelRequest": {"model": "fake"},
}


def find_decoder(request_type: type[Any]) -> BodyDecoder[Any]:
    decoder = DECODERS[request_type]
    assert isinstance(decoder, BodyDecoder)
    return decoder


def decode_body(
    request_type: type[Any], body: bytes, *args: Any, **options: Any
) -> Any:
    return find_decoder(request_type).decode(body, *args, **options)
