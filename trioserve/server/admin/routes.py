"""The endpoints of operators, and SageMaker's one for all bodies."""

from __future__ import annotations

from typing import Final

from ...api.chat.body import CHAT_BODY
from ...api.completions.body import COMPLETION_BODY
from ...api.pooling.body import (
    CLASSIFICATION_BODY,
    EMBEDDING_BODY,
    POOLING_BODY,
    RERANK_BODY,
    SCORE_BODY,
)
from ...http.record.cards import RequestDetailsList, RequestList
from ...http.route import Route
from ...http.wire.respond import BYTES, EVENTS, JSON, TEXT
from .adapters import (
    LOAD_BODY,
    UNLOAD_BODY,
    answer_load_adapter,
    answer_unload_adapter,
)
from .invocations import answer_invocation
from .live_requests import (
    answer_cancel_request,
    answer_cancel_requests,
    answer_request,
    answer_requests,
)
from .models import (
    MANAGE_BODY,
    ManagedModel,
    ModelCard,
    ModelList,
    answer_load_model,
    answer_model,
    answer_models,
    answer_unload_model,
)
from .sleep import IsSleeping, answer_is_sleeping, answer_sleep, answer_wake_up
from .status import (
    Version,
    answer_health,
    answer_live,
    answer_metrics,
    answer_progress,
    answer_ready,
    answer_version,
)

_WRONG_QUERY: Final = {"400": "The query has something else than one key."}
_OF_KEY: Final = {"key": "The name of a key; only its requests."}
_NOT_ADMIN: Final = {"403": "The key is not an administrator's."}
_NOT_SEVERAL: Final = {
    **_NOT_ADMIN,
    "404": "The model is not served here, or the server has one model alone.",
    "503": "The model is larger than --memory.",
}
_NO_REQUEST: Final = {"404": "No such request is being answered."}

ROUTES: Final = (
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
        example={"messages": [{"role": "user", "content": "Hello!"}]},
        answers={JSON: None, EVENTS: None, BYTES: None},
    ),
    Route(
        method="GET",
        paths=("/v1/models",),
        handler=answer_models,
        summary="List the models that are served, once for each of their names, and adapters.",
        answers={JSON: ModelList},
    ),
    Route(
        method="GET",
        paths=("/v1/models/<name:model>",),
        handler=answer_model,
        summary="Describe a model, or an adapter.",
        answers={JSON: ModelCard},
        errors={"404": "The model is not served here."},
    ),
    Route(
        method="POST",
        paths=("/models/load",),
        handler=answer_load_model,
        summary="Begin to load one of several models.",
        bodies=(MANAGE_BODY,),
        example={"model": "chat"},
        answers={JSON: ManagedModel},
        errors=_NOT_SEVERAL,
    ),
    Route(
        method="POST",
        paths=("/models/unload",),
        handler=answer_unload_model,
        summary="Unload one of several models when its requests have ended.",
        bodies=(MANAGE_BODY,),
        example={"model": "chat"},
        answers={JSON: ManagedModel},
        errors=_NOT_SEVERAL,
    ),
    Route(
        method="POST",
        paths=("/v1/load_lora_adapter",),
        handler=answer_load_adapter,
        summary="Load an adapter (LoRA) beside the running requests.",
        bodies=(LOAD_BODY,),
        example={"lora_name": "french", "lora_path": "french"},
        answers={TEXT: str},
        errors={
            **_NOT_ADMIN,
            "404": "Nothing is there, or --adapter-folder is not set.",
        },
    ),
    Route(
        method="POST",
        paths=("/v1/unload_lora_adapter",),
        handler=answer_unload_adapter,
        summary="Take no further requests for an adapter, and free its memory.",
        bodies=(UNLOAD_BODY,),
        example={"lora_name": "french"},
        answers={TEXT: str},
        errors={
            **_NOT_ADMIN,
            "404": "It is not loaded, or --adapter-folder is not set.",
        },
    ),
    Route(
        method="GET",
        paths=("/v1/requests",),
        handler=answer_requests,
        summary="List the requests that the server is answering.",
        query=_OF_KEY,
        answers={JSON: RequestList},
        errors=_WRONG_QUERY,
    ),
    Route(
        method="DELETE",
        paths=("/v1/requests",),
        handler=answer_cancel_requests,
        summary="Cancel all requests that the server is answering.",
        query=_OF_KEY,
        answers={JSON: RequestList},
        errors=_WRONG_QUERY,
    ),
    Route(
        method="GET",
        paths=("/v1/requests/<name:request_id>",),
        handler=answer_request,
        summary="Show a request that the server is answering, and where it waits.",
        answers={JSON: RequestDetailsList},
        errors=_NO_REQUEST,
    ),
    Route(
        method="DELETE",
        paths=("/v1/requests/<name:request_id>",),
        handler=answer_cancel_request,
        summary="Cancel a request that the server is answering.",
        answers={JSON: RequestList},
        errors=_NO_REQUEST,
    ),
    Route(
        method="POST",
        paths=("/sleep",),
        handler=answer_sleep,
        summary="Let the engine give memory back and refuse requests, until it is woken.",
        query={
            "level": "1 gives back the KV cache, 2 the weights, too; by default 1.",
            "mode": "abort ends the running requests, wait lets them end; by default abort.",
            "model": "The model, if there are several.",
        },
        errors={
            **_NOT_ADMIN,
            "400": "The engine does not have the level or the mode, or is not loaded.",
            "404": "The model is not served here.",
        },
    ),
    Route(
        method="POST",
        paths=("/wake_up",),
        handler=answer_wake_up,
        summary="Wake the engine, and answer when the model can run.",
        query={"model": "The model, if there are several."},
        errors={
            **_NOT_ADMIN,
            "400": "The query has something else, or the engine is not loaded.",
            "404": "The model is not served here.",
            "503": "The engine cannot wake.",
        },
    ),
    Route(
        method="GET",
        paths=("/is_sleeping",),
        handler=answer_is_sleeping,
        summary="Say whether the engine has given memory back.",
        answers={JSON: IsSleeping},
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
        answers={TEXT: str},
    ),
    Route(
        method="GET",
        paths=("/version",),
        handler=answer_version,
        summary="Report the server's version.",
        answers={JSON: Version},
    ),
)
