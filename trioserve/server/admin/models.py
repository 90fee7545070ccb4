"""The endpoints that describe the model: GET /v1/models and GET /v1/models/{model}."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec
from quart import Response

from ...frontend import PoolingEngine, TextEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_json
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


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served, or an adapter of it.

    Args:
      root: the first name of the model, or the path of the adapter.
      parent: the model of an adapter.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trioserve"] = "trioserve"
    root: str
    parent: str | None = None
    max_model_len: int
    architecture: ModelArchitecture


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


async def answer_models(state: ServerState, request: ScopedRequest) -> Response:
    """List the one model that is served, once for each of its names, and its adapters."""
    engine = await state.require_engine(request.model)
    cards = (
        _describe(engine.find(name) or engine, name) for name in engine.list_names()
    )
    return respond_json(ModelList(data=tuple(cards)))


async def answer_model(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the served model, if the path ends with its name."""
    assert request.view_args is not None, "the route has a part for the name"
    # Werkzeug takes a slash at the end of the path as part of the name.
    name = request.view_args["model"]
    name = name.removesuffix("/") or name
    return respond_json(
        _describe(await state.require_engine(request.model, name), name)
    )


def _describe(engine: TextEngine | PoolingEngine, name: str) -> ModelCard:
    task = engine.pooling.task if isinstance(engine, PoolingEngine) else "generate"
    info = engine.info
    return ModelCard(
        id=name,
        created=_STARTED_AT,
        root=info.name if engine.parent is None else info.source,
        parent=engine.parent,
        max_model_len=info.max_model_len,
        architecture=ModelArchitecture(
            input_modalities=("text", "image") if info.takes_images else ("text",),
            output_modalities=(_OUTPUTS[task],),
        ),
    )
