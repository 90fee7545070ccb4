"""The OpenAPI 3.1 document, made from the structs that are decoded and encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..frontend.text import MAX_THINKING_TOKEN_BUDGET
from ..types.sampling import SAMPLING_BOUNDS
from .decode import pooling_requests as pooling_requests, requests
from .wire import pooling_responses as pooling_responses, responses

# Parts of a document; JSON has no narrower type.
_Json = dict[str, Any]

_REF_TEMPLATE: Final = "#/components/schemas/{name}"

# Fields that SamplingParams has by another name, or not.
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = SAMPLING_BOUNDS | {
    "top_logprobs": SAMPLING_BOUNDS["logprobs"],
    "max_completion_tokens": SAMPLING_BOUNDS["max_tokens"],
    "thinking_token_budget": (0, MAX_THINKING_TOKEN_BUDGET),
}

_REQUESTS: Final = (
    requests.ChatRequest,
    requests.CompletionRequest,
    requests.TokenizeRequest,
    requests.DetokenizeRequest,
    pooling_requests.EmbeddingRequest,
    pooling_requests.PoolingRequest,
    pooling_requests.ClassificationRequest,
    pooling_requests.ScoreRequest,
    pooling_requests.RerankRequest,
    pooling_requests.CohereEmbedRequest,
)
_RESPONSES: Final = (
    responses.ChatCompletion,
    responses.ChatChunk,
    responses.Completion,
    responses.CompletionChunk,
    responses.ModelCard,
    responses.ModelList,
    responses.Tokenized,
    responses.Detokenized,
    responses.Version,
    responses.ErrorBody,
    pooling_responses.EmbeddingList,
    pooling_responses.PooledList,
    pooling_responses.ClassificationList,
    pooling_responses.ScoreList,
    pooling_responses.RankedList,
    pooling_responses.CohereEmbeddings,
    pooling_responses.CohereFloats,
)

# All are in errors.py.
_ERRORS: Final[Mapping[str, str]] = {
    "400": "The body is no JSON, or a field is wrong; `param` names it.",
    "404": "The model is not served here.",
    "408": "The body came too slowly.",
    "413": "The body is too long.",
    "415": "The body is not declared as JSON, or is compressed.",
    "429": "Too many requests wait; Retry-After tells when to come again.",
    "500": "The engine failed.",
    "503": "The server is stopping, or has no memory or threads left for this request.",
}


def openapi_document(version: str) -> dict[str, object]:
    """Describe the API as OpenAPI 3.1.

    Args:
      version: the server's own version.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "trioserve", "version": version},
        "paths": _describe_paths(),
        "components": {"schemas": _describe_schemas()},
    }


def _describe_paths() -> _Json:
    chat = _post(
        "Answer a conversation",
        requests.ChatRequest,
        responses.ChatCompletion,
        chunk=responses.ChatChunk,
    )
    completion = _post(
        "Continue a prompt",
        requests.CompletionRequest,
        responses.Completion,
        chunk=responses.CompletionChunk,
    )
    tokenize = _post(
        "Turn text into token ids", requests.TokenizeRequest, responses.Tokenized
    )
    detokenize = _post(
        "Turn token ids into text", requests.DetokenizeRequest, responses.Detokenized
    )
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": completion},
        **_describe_pooling_paths(),
        "/tokenize": {"post": tokenize},
        "/detokenize": {"post": detokenize},
        "/v1/models": {"get": _get("List the models", _json(responses.ModelList))},
        "/v1/models/{model}": {"get": _get_model()},
        "/health": {"get": _get_health()},
        "/progressz": {"get": _get_progress()},
        "/version": {"get": _get("Tell the version", _json(responses.Version))},
        "/metrics": {"get": _get("Metrics for Prometheus", {"text/plain": _TEXT})},
        "/openapi.json": {
            "get": _get("This document", {"application/json": {"schema": {}}})
        },
    }


def _describe_pooling_paths() -> _Json:
    embeddings = _post(
        "Embed texts",
        pooling_requests.EmbeddingRequest,
        pooling_responses.EmbeddingList,
        gives_bytes=True,
    )
    pooling = _post(
        "Pool texts",
        pooling_requests.PoolingRequest,
        pooling_responses.PooledList,
        gives_bytes=True,
    )
    classify = _post(
        "Classify texts",
        pooling_requests.ClassificationRequest,
        pooling_responses.ClassificationList,
    )
    score = _post(
        "Score documents",
        pooling_requests.ScoreRequest,
        pooling_responses.ScoreList,
    )
    rerank = _post(
        "Rank documents",
        pooling_requests.RerankRequest,
        pooling_responses.RankedList,
    )
    embed = _post(
        "Embed texts, as Cohere does",
        pooling_requests.CohereEmbedRequest,
        pooling_responses.CohereEmbeddings,
    )
    embed_v1 = _post(
        "Embed texts, as Cohere did",
        pooling_requests.CohereEmbedRequest,
        pooling_responses.CohereFloats,
    )
    return {
        "/v1/embeddings": {"post": embeddings},
        "/pooling": {"post": pooling},
        "/classify": {"post": classify},
        "/score": {"post": score},
        "/v1/score": {"post": score},
        "/rerank": {"post": rerank},
        "/v1/rerank": {"post": rerank},
        "/v2/rerank": {"post": rerank},
        "/v2/embed": {"post": embed},
        "/v1/embed": {"post": embed_v1},
    }


_TEXT: Final[_Json] = {"schema": {"type": "string"}}


def _post(
    summary: str,
    request: type[msgspec.Struct],
    response: type[msgspec.Struct],
    *,
    chunk: type[msgspec.Struct] | None = None,
    gives_bytes: bool = False,
) -> _Json:
    success = _json(response)
    if gives_bytes:
        # OpenAPI 3.1 says with an empty schema that it is bytes.
        success["application/octet-stream"] = {}
    if chunk is not None:
        # The document has no word for "many of these": it describes one event's data.
        success["text/event-stream"] = {"schema": _refer(chunk)}
    errors = {
        status: {"description": text, "content": _json(responses.ErrorBody)}
        for status, text in _ERRORS.items()
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": _succeed(success), **errors},
    }


def _get(summary: str, content: _Json) -> _Json:
    return {"summary": summary, "responses": {"200": _succeed(content)}}


def _get_model() -> _Json:
    operation = _get("Describe a model", _json(responses.ModelCard))
    operation["parameters"] = [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "description": "The model's name, which may hold slashes.",
            "schema": {"type": "string"},
        }
    ]
    operation["responses"]["404"] = {
        "description": _ERRORS["404"],
        "content": _json(responses.ErrorBody),
    }
    return operation


def _get_health() -> _Json:
    return {
        "summary": "Tell whether requests can be served",
        "responses": {
            "200": {"description": "They can."},
            "503": {"description": "The engine failed or the server is stopping."},
        },
    }


def _get_progress() -> _Json:
    return {
        "summary": "Tell whether the engine gets on with its work",
        "responses": {
            "200": {"description": "It does, or there is no work."},
            "503": {"description": "A step has not ended for too long, or it failed."},
        },
    }


def _succeed(content: _Json) -> _Json:
    return {"description": "Success", "content": content}


def _json(struct: type[msgspec.Struct]) -> _Json:
    return {"application/json": {"schema": _refer(struct)}}


def _refer(struct: type[msgspec.Struct]) -> _Json:
    return {"$ref": _REF_TEMPLATE.format(name=struct.__name__)}


def _describe_schemas() -> _Json:
    _, schemas = msgspec.json.schema_components(
        (*_REQUESTS, *_RESPONSES),
        ref_template=_REF_TEMPLATE,
        schema_hook=_describe_object,
    )
    for request in _REQUESTS:
        for name, field in schemas[request.__name__]["properties"].items():
            if name in _BOUNDS:
                _bound(field, *_BOUNDS[name])
    return schemas


def _describe_object(type_: type) -> _Json:
    if type_ is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


def _bound(field: _Json, low: float, high: float) -> None:
    """Narrow the branches of a field's schema that are numbers."""
    for branch in field.get("anyOf", [field]):
        # Chat's logprobs is a flag and has the name of a number.
        if branch.get("type") in ("integer", "number"):
            branch.update(minimum=low, maximum=high)
