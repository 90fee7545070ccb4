"""The table of all endpoints.

It feeds the app (app.py) and the OpenAPI document (openapi.py), and a test keeps the
table of docs/api.rst equal to it. A new endpoint is a handler, the structs of its request
and its answer, and one row here.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
from quart import Response
import trio

from ..api.anthropic import answers as anthropic
from ..api.anthropic.body import (
    COUNT_TOKENS_BODY,
    MESSAGES_BODY,
)
from ..api.anthropic.handler import (
    answer_count_tokens,
    answer_messages,
)
from ..api.chat.answers import ChatChunk, ChatCompletion
from ..api.chat.body import CHAT_BODY
from ..api.chat.handler import answer_chat
from ..api.cohere.handler import (
    answer_embed,
    answer_embed_v1,
)
from ..api.completions.answers import Completion, CompletionChunk
from ..api.completions.body import COMPLETION_BODY
from ..api.completions.handler import answer_completion
from ..api.pooling import answers as pooling_responses
from ..api.pooling.body import (
    CLASSIFICATION_BODY,
    COHERE_EMBED_BODY,
    EMBEDDING_BODY,
    POOLING_BODY,
    RERANK_BODY,
    SCORE_BODY,
)
from ..api.pooling.classify import answer_classify
from ..api.pooling.embeddings import (
    answer_embeddings,
    answer_pooling,
)
from ..api.pooling.score import (
    answer_rerank,
    answer_score,
)
from ..api.responses import (
    answers as response_object,
    events as response_events,
)
from ..api.responses.body import RESPONSE_BODY
from ..api.responses.handler import answer_response
from ..api.responses.stored import (
    answer_cancel_response,
    answer_delete_response,
    answer_input_items,
    answer_stored_response,
)
from ..api.tokens.body import (
    DETOKENIZE_BODY,
    TOKENIZE_BODY,
)
from ..api.tokens.handler import (
    answer_detokenize,
    answer_tokenize,
)
from ..http.record import descriptions
from ..http.route import Route
from ..http.scope import ScopedRequest
from ..http.state import ServerState
from ..http.wire.respond import (
    BYTES,
    EVENTS,
    JSON,
)
from ..types.version import __version__
from .admin.invocations import answer_invocation
from .admin.live_requests import (
    answer_cancel_request,
    answer_cancel_requests,
    answer_request,
    answer_requests,
)
from .admin.status import (
    answer_health,
    answer_live,
    answer_metrics,
    answer_model,
    answer_models,
    answer_progress,
    answer_ready,
    answer_tokenizer_info,
    answer_version,
)
from .openapi import openapi_document
from .page import (
    Document,
    render_reference,
)
from .page.handler import (
    answer_page,
    respond_document,
)


async def answer_openapi(state: ServerState, request: ScopedRequest) -> Response:
    """Describe this API."""
    return Response(_render_openapi(state.config.root_path), content_type=JSON)


@cache
def _render_openapi(root_path: str | None) -> bytes:
    return msgspec.json.encode(openapi_document(__version__, ROUTES, root_path))


async def answer_docs(state: ServerState, request: ScopedRequest) -> Response:
    """Show the description of this API."""
    if request.path.endswith("/"):
        # Below this path, the document's relative links would lead elsewhere.
        return Response(b"", 308, {"Location": "../docs"})
    document = await trio.to_thread.run_sync(
        _render_docs, state.config.root_path, limiter=_RENDERING
    )
    return respond_document(state, request, document)


# To write the document takes a quarter of a second, once.
_RENDERING: Final = trio.CapacityLimiter(1)


@cache
def _render_docs(root_path: str | None) -> Document:
    return render_reference(openapi_document(__version__, ROUTES, root_path))


_HELLO: Final = [{"role": "user", "content": "Hello!"}]
_COHERE: Final = {
    "model": "MODEL",
    "texts": ["A text."],
    "input_type": "search_document",
    "embedding_types": ["float"],
}
_WRONG_QUERY = {"400": "The query has something else than one key."}
_OF_KEY = {"key": "The name of a key; only its requests."}
_NO_REQUEST: Final = {"404": "No such request is being answered."}
_NO_UI: Final = {"404": "An option (--no-ui) turns it off."}
_NO_RESPONSE: Final = {
    "400": "A parameter is wrong.",
    "404": "The response is not stored, or not any more.",
}

_GENERATION: Final = (
    Route(
        method="POST",
        paths=("/v1/chat/completions",),
        handler=answer_chat,
        summary="Answer a conversation, at once or as server-sent events.",
        bodies=(CHAT_BODY,),
        example={"messages": _HELLO},
        answers={JSON: ChatCompletion, EVENTS: ChatChunk},
    ),
    Route(
        method="POST",
        paths=("/v1/completions",),
        handler=answer_completion,
        summary="Continue one or several prompts, each a string or token ids.",
        bodies=(COMPLETION_BODY,),
        example={"prompt": "Once upon a time", "max_tokens": 20},
        answers={JSON: Completion, EVENTS: CompletionChunk},
    ),
    Route(
        method="POST",
        paths=("/v1/responses",),
        handler=answer_response,
        summary="Answer a conversation of items, at once, as a stream, or later.",
        bodies=(RESPONSE_BODY,),
        example={"input": "Hello!"},
        answers={
            JSON: response_object.ResponseObject,
            EVENTS: response_events.AnyResponseEvent,
        },
    ),
    Route(
        method="GET",
        paths=("/v1/responses/<string:response_id>",),
        handler=answer_stored_response,
        summary="Show a stored response, or follow its events.",
        answers={
            JSON: response_object.ResponseObject,
            EVENTS: response_events.AnyResponseEvent,
        },
        query={
            "stream": "Whether to follow the events: true or false.",
            "starting_after": "The number of the last event that the client has.",
        },
        errors=_NO_RESPONSE,
    ),
    Route(
        method="DELETE",
        paths=("/v1/responses/<string:response_id>",),
        handler=answer_delete_response,
        summary="Forget a stored response.",
        answers={JSON: response_object.DeletedResponse},
        errors=_NO_RESPONSE,
    ),
    Route(
        method="POST",
        paths=("/v1/responses/<string:response_id>/cancel",),
        handler=answer_cancel_response,
        summary="End a response in the background.",
        answers={JSON: response_object.ResponseObject},
        errors=_NO_RESPONSE,
    ),
    Route(
        method="GET",
        paths=("/v1/responses/<string:response_id>/input_items",),
        handler=answer_input_items,
        summary="List the items that a stored response answers.",
        answers={JSON: response_object.InputItemList},
        query={
            "after": "The id of the item before the first one.",
            "limit": "The most items: 1 to 100; 20 by default.",
            "order": "asc for the oldest first, desc (the default) for the newest.",
        },
        errors=_NO_RESPONSE,
    ),
)

_ANTHROPIC: Final = (
    Route(
        method="POST",
        paths=("/v1/messages",),
        handler=answer_messages,
        summary="Answer a conversation, in the form of Anthropic's API.",
        bodies=(MESSAGES_BODY,),
        example={"model": "MODEL", "messages": _HELLO, "max_tokens": 50},
        answers={JSON: anthropic.AnthropicMessage, EVENTS: anthropic.MessageEvent},
        error=anthropic.AnthropicError,
    ),
    Route(
        method="POST",
        paths=("/v1/messages/count_tokens",),
        handler=answer_count_tokens,
        summary="Count the tokens of a conversation, in the form of Anthropic's API.",
        bodies=(COUNT_TOKENS_BODY,),
        example={"model": "MODEL", "messages": _HELLO},
        answers={JSON: anthropic.TokenCount},
        error=anthropic.AnthropicError,
    ),
)

_POOLING: Final = (
    Route(
        method="POST",
        paths=("/v1/embeddings",),
        handler=answer_embeddings,
        summary="Embed a string, token ids, chats, or lists of them.",
        bodies=(EMBEDDING_BODY,),
        example={"input": ["A text.", "Another text."]},
        answers={JSON: pooling_responses.EmbeddingList, BYTES: None},
    ),
    Route(
        method="POST",
        paths=("/pooling",),
        handler=answer_pooling,
        summary="Give vectors or labels of texts, or of each of their tokens.",
        bodies=(POOLING_BODY,),
        example={"input": "A text."},
        answers={JSON: pooling_responses.PooledList, BYTES: None},
    ),
    Route(
        method="POST",
        paths=("/classify",),
        handler=answer_classify,
        summary="Label texts.",
        bodies=(CLASSIFICATION_BODY,),
        example={"input": "A text."},
        answers={JSON: pooling_responses.ClassificationList},
    ),
    Route(
        method="POST",
        paths=("/score", "/v1/score"),
        handler=answer_score,
        summary="Compare a query with each document, or compare pairs.",
        bodies=(SCORE_BODY,),
        example={"text_1": "A question?", "text_2": ["A text."]},
        answers={JSON: pooling_responses.ScoreList},
    ),
    Route(
        method="POST",
        paths=("/rerank", "/v1/rerank", "/v2/rerank"),
        handler=answer_rerank,
        summary="Sort documents by how well they answer a query.",
        bodies=(RERANK_BODY,),
        example={"query": "A question?", "documents": ["A text.", "Another."]},
        answers={JSON: pooling_responses.RankedList},
    ),
    Route(
        method="POST",
        paths=("/v2/embed",),
        handler=answer_embed,
        summary="Embed texts, in the form of Cohere's second API.",
        bodies=(COHERE_EMBED_BODY,),
        example=_COHERE,
        answers={JSON: pooling_responses.CohereEmbeddings},
    ),
    Route(
        method="POST",
        paths=("/v1/embed",),
        handler=answer_embed_v1,
        summary="Embed texts, in the form of Cohere's first API.",
        bodies=(COHERE_EMBED_BODY,),
        example=_COHERE,
        answers={JSON: pooling_responses.CohereFloats},
    ),
)

_SAGEMAKER: Final = (
    Route(
        method="POST",
        paths=("/invocations",),
        handler=answer_invocation,
        summary="Answer a body of another endpoint, for SageMaker.",
        bodies=(
            CHAT_BODY,
            COMPLETION_BODY,
            EMBEDDING_BODY,
            CLASSIFICATION_BODY,
            SCORE_BODY,
            RERANK_BODY,
            POOLING_BODY,
        ),
        example={"messages": _HELLO},
        answers={JSON: None, EVENTS: None, BYTES: None},
    ),
)

_TOKENS: Final = (
    Route(
        method="POST",
        paths=("/tokenize",),
        handler=answer_tokenize,
        summary="Convert text or messages to token ids.",
        bodies=(TOKENIZE_BODY,),
        example={"prompt": "Hello!"},
        answers={JSON: descriptions.Tokenized},
    ),
    Route(
        method="POST",
        paths=("/detokenize",),
        handler=answer_detokenize,
        summary="Convert token ids to text.",
        bodies=(DETOKENIZE_BODY,),
        example={"tokens": [1, 2, 3]},
        answers={JSON: descriptions.Detokenized},
    ),
    Route(
        method="GET",
        paths=("/tokenizer_info",),
        handler=answer_tokenizer_info,
        summary="Describe the tokenizer.",
        answers={JSON: descriptions.TokenizerInfo},
        errors={"404": "An option (--enable-tokenizer-info-endpoint) turns it on."},
    ),
)

_ADMIN: Final = (
    Route(
        method="GET",
        paths=("/v1/models",),
        handler=answer_models,
        summary="List the models that are served: one.",
        answers={JSON: descriptions.ModelList},
    ),
    Route(
        method="GET",
        paths=("/v1/models/<name:model>",),
        handler=answer_model,
        summary="Describe a model.",
        answers={JSON: descriptions.ModelCard},
        errors={"404": "The model is not served here."},
    ),
    Route(
        method="GET",
        paths=("/v1/requests",),
        handler=answer_requests,
        summary="List the requests that the server is answering.",
        query=_OF_KEY,
        answers={JSON: descriptions.RequestList},
        errors=_WRONG_QUERY,
    ),
    Route(
        method="DELETE",
        paths=("/v1/requests",),
        handler=answer_cancel_requests,
        summary="Cancel all requests that the server is answering.",
        query=_OF_KEY,
        answers={JSON: descriptions.RequestList},
        errors=_WRONG_QUERY,
    ),
    Route(
        method="GET",
        paths=("/v1/requests/<name:request_id>",),
        handler=answer_request,
        summary="Show a request that the server is answering, and where it waits.",
        answers={JSON: descriptions.RequestDetailsList},
        errors=_NO_REQUEST,
    ),
    Route(
        method="DELETE",
        paths=("/v1/requests/<name:request_id>",),
        handler=answer_cancel_request,
        summary="Cancel a request that the server is answering.",
        answers={JSON: descriptions.RequestList},
        errors=_NO_REQUEST,
    ),
    Route(
        method="GET",
        paths=("/health", "/ping"),
        handler=answer_health,
        summary="Answer 200 while the server takes requests, and 503 otherwise.",
        errors={"503": "The engine failed, or the server is stopping."},
    ),
    Route(
        method="GET",
        paths=("/livez",),
        handler=answer_live,
        summary="Answer 200 while the event loop runs.",
    ),
    Route(
        method="GET",
        paths=("/readyz",),
        handler=answer_ready,
        summary="Answer 200 while a short request would be taken, and 503 otherwise.",
        errors={"503": "The server takes no requests, or too many wait."},
    ),
    Route(
        method="GET",
        paths=("/progressz",),
        handler=answer_progress,
        summary="Answer 200 while the engine makes progress, and 503 otherwise.",
        errors={"503": "A step has not ended for too long, or the engine failed."},
    ),
    Route(
        method="GET",
        paths=("/metrics",),
        handler=answer_metrics,
        summary="Report metrics for Prometheus.",
        answers={"text/plain": str},
    ),
    Route(
        method="GET",
        paths=("/version",),
        handler=answer_version,
        summary="Report the server's version.",
        answers={JSON: descriptions.Version},
    ),
    Route(
        method="GET",
        paths=("/openapi.json",),
        handler=answer_openapi,
        summary="Describe this API.",
        answers={JSON: None},
    ),
)

_DOCUMENTS: Final = (
    Route(
        method="GET",
        paths=("/",),
        handler=answer_page,
        summary="Show a page with a chat and the running requests.",
        answers={"text/html": str},
        errors=_NO_UI,
        is_document=True,
    ),
    Route(
        method="GET",
        paths=("/docs",),
        handler=answer_docs,
        summary="Show the description of this API.",
        answers={"text/html": str},
        errors=_NO_UI,
        is_document=True,
    ),
)

ROUTES: Final[tuple[Route, ...]] = (
    *_GENERATION,
    *_ANTHROPIC,
    *_POOLING,
    *_SAGEMAKER,
    *_TOKENS,
    *_ADMIN,
    *_DOCUMENTS,
)
