"""The endpoints of models: GET /v1/models, and with several models POST /models/load and unload.

The states of several models have llama-server's form. To ask for them loads nothing.
"""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec
from quart import Response

from ...api.decode.body import read_body
from ...api.decode.decoder import BodyDecoder
from ...api.decode.fields import ModelRequest
from ...errors import EndpointOff, InvalidParameter
from ...frontend import PoolingEngine, TextEngine
from ...frontend.models.router import ModelRouter, ModelStatus
from ...http.keys.keys import check_admin
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_json
from ...types.model_info import ModelInfo
from ...types.pooling import Task

_STARTED_AT = int(time.time())

Modality = Literal["text", "image", "embeddings", "labels"]

_OUTPUTS: Final[dict[Task, Modality]] = {
    "generate": "text",
    "embed": "embeddings",
    "token_embed": "embeddings",
    "classify": "labels",
    "token_classify": "labels",
}


class ModelArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs and outputs of a model, with the names of OpenRouter and llama.cpp.

    Args:
      output_modalities: of models that pool, "embeddings" or "labels".
    """

    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]


class StatusCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one of several models, as llama-server shows it.

    Args:
      value: unloaded, loading, loaded, sleeping, draining or failed.
      failed: it could not be loaded, or its engine has failed.
      reason: of the failure.
      memory_bytes: memory that it holds, or will hold when it is loaded; before its first load
        an estimate, or 0.
      num_requests: requests that use it.
      num_waiting: requests that wait for it.
    """

    value: str
    failed: bool = False
    reason: str = ""
    memory_bytes: int = 0
    num_requests: int = 0
    num_waiting: int = 0


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served, or an adapter of it.

    Args:
      max_model_len, architecture: null until a model was loaded, if there are several.
      status: the state of the model, if there are several.
      root: the first name of the model, or the path of the adapter.
      parent: the model of an adapter.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trioserve"] = "trioserve"
    root: str
    parent: str | None = None
    max_model_len: int | None
    architecture: ModelArchitecture | None
    status: StatusCard | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


async def answer_models(state: ServerState, request: ScopedRequest) -> Response:
    """List the models that are served, once for each of their names, and adapters."""
    if state.models is not None:
        found = (_describe_status(each) for each in state.models.describe())
        return respond_json(
            ModelList(data=tuple(card for cards in found for card in cards))
        )
    engine = await state.require_engine(request.model)
    return respond_json(ModelList(data=tuple(_describe_all(engine))))


async def answer_model(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the served model, if the path ends with its name."""
    assert request.view_args is not None, "the route has a part for the name"
    # Werkzeug takes a slash at the end of the path as part of the name.
    name = request.view_args["model"]
    name = name.removesuffix("/") or name
    if state.models is not None:
        return respond_json(_find_card(state.models, name))
    return respond_json(
        _describe(await state.require_engine(request.model, name), name)
    )


class ManageModelRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /models/load and POST /models/unload."""

    def __post_init__(self) -> None:
        if self.model is None:
            raise InvalidParameter("model", "is required")


class ManagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /models/load and POST /models/unload."""

    success: bool = True


MANAGE_BODY: Final = BodyDecoder(ManageModelRequest)


async def answer_load_model(state: ServerState, request: ScopedRequest) -> Response:
    """Begin to load one of several models."""
    models, name = await _read_model(state, request)
    models.load(name)
    return respond_json(ManagedModel())


async def answer_unload_model(state: ServerState, request: ScopedRequest) -> Response:
    """Unload one of several models when its requests have ended."""
    models, name = await _read_model(state, request)
    models.unload(name)
    return respond_json(ManagedModel())


async def _read_model(
    state: ServerState, request: ScopedRequest
) -> tuple[ModelRouter, str]:
    """Read the name of a model that the client may load and unload.

    Raises:
      EndpointOff, AdminKeyNeeded, ModelNotFound
    """
    if state.models is None:
        raise EndpointOff("several models, such as --models FILE")
    check_admin(request.live.key)
    body = await read_body(state, request, MANAGE_BODY)
    return state.models, state.models.find(body.model)


def _find_card(models: ModelRouter, name: str) -> ModelCard:
    """Return the card of one of several models, or of an adapter."""
    model = models.find(name)
    [status] = [each for each in models.describe() if each.entry.name == model]
    cards = _describe_status(status)
    first = next(iter(cards))
    return next(
        (each for each in cards if each.id == name),
        msgspec.structs.replace(first, id=name),
    )


def _describe_status(model: ModelStatus) -> list[ModelCard]:
    """Return a card for each name of one of several models, and for each adapter."""
    entry, view = model.entry, model.view
    status = StatusCard(
        value=model.state,
        failed=view.state == "failed",
        reason=view.reason,
        memory_bytes=view.num_bytes,
        num_requests=view.num_users,
        num_waiting=view.num_waiting,
    )
    if model.engine is not None:
        cards = _describe_all(model.engine)
    else:
        cards = [_make_card(model.info, model.task, name) for name in entry.names]
        cards += [
            _make_card(model.info, model.task, name, parent=entry.name)
            for name in entry.adapters
        ]
    return [msgspec.structs.replace(each, status=status) for each in cards]


def _describe_all(engine: TextEngine | PoolingEngine) -> list[ModelCard]:
    """Return a card for each name of a model, and for each of its adapters."""
    return [
        _describe(engine.find(name) or engine, name) for name in engine.list_names()
    ]


def _describe(engine: TextEngine | PoolingEngine, name: str) -> ModelCard:
    task = engine.pooling.task if isinstance(engine, PoolingEngine) else "generate"
    root = engine.info.name if engine.parent is None else engine.info.source
    return _make_card(engine.info, task, name, root=root, parent=engine.parent)


def _make_card(
    info: ModelInfo | None,
    task: Task,
    name: str,
    *,
    root: str = "",
    parent: str | None = None,
) -> ModelCard:
    """Make a card.

    Args:
      info: None if the model was never loaded.
    """
    if info is None:
        return ModelCard(
            id=name,
            created=_STARTED_AT,
            root=parent or name,
            parent=parent,
            max_model_len=None,
            architecture=None,
        )
    return ModelCard(
        id=name,
        created=_STARTED_AT,
        root=root or info.name,
        parent=parent,
        max_model_len=info.max_model_len,
        architecture=ModelArchitecture(
            input_modalities=("text", "image") if info.takes_images else ("text",),
            output_modalities=(_OUTPUTS[task],),
        ),
    )
