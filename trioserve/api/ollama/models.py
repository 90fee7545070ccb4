"""The endpoints that describe the model: GET /api/tags, GET /api/ps, POST /api/show.

And GET /api/version.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from hashlib import sha256
import re
from typing import Final

import msgspec
from quart import Response

from ...frontend import PoolingEngine, TextEngine
from ...frontend.models.router import ModelStatus
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_json
from ...types.model_info import ModelInfo, WeightFiles
from ...types.version import __version__
from .body import SHOW_BODY, read_ollama

# Tools ask for it to know what they may send. It was the first one with `logprobs`, the
# youngest of the fields that are taken here.
API_VERSION: Final = "0.12.11"

# A model that stays loaded has no such time. Ollama's is centuries away then, too.
_NEVER: Final = datetime(9999, 12, 31, tzinfo=timezone.utc)

# The end of transformers' class names. GGUF files have the rest as their architecture.
_CLASS_END: Final = re.compile(r"(For[A-Z]\w*|(LMHead)?Model)$")

# Names of options that are called otherwise.
_OPTIONS: Final = {"repetition_penalty": "repeat_penalty"}


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a model.

    Args:
      parameter_size: such as 1.7B; empty if the weights are packed.
      quantization_level: the type of most of the weights' numbers in the files.
    """

    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str
    quantization_level: str


class ListedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one of several models; see GET /v1/models."""

    value: str
    reason: str


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served.

    Args:
      size: bytes of the weights' files; 0 until a model was loaded, if there are several.
      digest: changes if the same request could get another answer.
      status: the state of the model, if there are several.
    """

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: ModelDetails
    status: ListedStatus | msgspec.UnsetType = msgspec.UNSET


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded; see ListedModel.

    Args:
      size_vram: 0 or `size`.
    """

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: datetime = _NEVER
    size_vram: int
    context_length: int


class ModelTags(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /api/tags."""

    models: tuple[ListedModel, ...]


class LoadedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /api/ps."""

    models: tuple[LoadedModel, ...]


class ShownModel(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /api/show.

    Args:
      parameters: the model's own options, one in a line.
      template: the chat template, which is Jinja here.
      model_info: with the keys of GGUF files.
    """

    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, str | int]
    capabilities: tuple[str, ...]
    modified_at: datetime


class OllamaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /api/version.

    Args:
      version: the version of Ollama with the same API.
      trioserve: the version of this server.
    """

    version: str
    trioserve: str


async def answer_tags(state: ServerState, request: ScopedRequest) -> Response:
    """List the models that are served, once for each of their names, and adapters."""
    if state.models is None:
        listed = _list_served(await state.require_engine(request.model))
    else:
        listed = [each for one in state.models.describe() for each in _list_one(one)]
    return respond_json(ModelTags(models=tuple(listed)))


async def answer_loaded(state: ServerState, request: ScopedRequest) -> Response:
    """List the models that are loaded: one model always is."""
    if state.models is None:
        engines = [await state.require_engine(request.model)]
    else:
        engines = state.engines
    loaded = (_describe_loaded(each.info) for each in engines)
    return respond_json(LoadedModels(models=tuple(loaded)))


async def answer_show(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the model, and what it can do."""
    request.model.purpose = "read"
    body, _ = await read_ollama(state, request, SHOW_BODY, state.require_engine)
    # Older clients send the name alone.
    engine = await state.require_engine(request.model, body.name or body.model)
    parameters = [
        f"{_OPTIONS.get(name, name):<30} {value:g}"
        for name, value in engine.info.default_sampling
    ]
    templates = engine.renderer.model_tokenizer.chat_templates
    return respond_json(
        ShownModel(
            parameters="\n".join(parameters),
            template=templates.get("default", ""),
            details=_describe(engine.info, engine.parent),
            model_info=_list_facts(engine.info),
            capabilities=tuple(_list_capabilities(engine)),
            modified_at=_find_change(engine.info),
        )
    )


async def answer_ollama_version(state: ServerState, request: ScopedRequest) -> Response:
    """Report the version of Ollama's API."""
    return respond_json(OllamaVersion(version=API_VERSION, trioserve=__version__))


def _list_served(engine: TextEngine | PoolingEngine) -> list[ListedModel]:
    """List a loaded model and its adapters."""
    found = ((name, engine.find(name) or engine) for name in engine.list_names())
    return [_list(name, each.info, each.parent) for name, each in found]


def _list_one(model: ModelStatus) -> list[ListedModel]:
    """List one of several models, which may not be loaded, and its adapters."""
    status = ListedStatus(value=model.state, reason=model.view.reason)
    if model.engine is not None:
        listed = _list_served(model.engine)
    else:
        entry = model.entry
        listed = [_list(name, model.info) for name in entry.names]
        listed += [_list(name, model.info, entry.name) for name in entry.adapters]
    return [msgspec.structs.replace(each, status=status) for each in listed]


def _list(name: str, info: ModelInfo | None, parent: str | None = None) -> ListedModel:
    """Describe a model, or an adapter.

    Args:
      info: None if the model was never loaded; then most is not known.
    """
    return ListedModel(
        name=name,
        model=name,
        modified_at=_find_change(info),
        size=0 if info is None else info.weights.num_bytes,
        digest="" if info is None else _digest(info),
        details=_describe(info, parent),
    )


def _describe_loaded(info: ModelInfo) -> LoadedModel:
    size = info.weights.num_bytes
    return LoadedModel(
        name=info.name,
        model=info.name,
        size=size,
        digest=_digest(info),
        details=_describe(info),
        size_vram=0 if info.device_type == "cpu" else size,
        context_length=info.max_model_len,
    )


def _describe(info: ModelInfo | None, parent: str | None = None) -> ModelDetails:
    weights = WeightFiles(form="") if info is None else info.weights
    family = "" if info is None else _find_family(info)
    return ModelDetails(
        parent_model=parent or "",
        format=weights.form,
        family=family,
        families=(family,) if family else (),
        parameter_size=_shorten(weights.num_parameters),
        quantization_level=weights.number_type,
    )


def _list_facts(info: ModelInfo) -> dict[str, str | int]:
    family = _find_family(info)
    facts: dict[str, str | int] = {
        "general.architecture": family,
        "general.basename": info.name,
        "general.parameter_count": info.weights.num_parameters,
        f"{family}.context_length": info.max_model_len,
        f"{family}.embedding_length": info.hidden_size,
        f"{family}.vocab_size": info.vocab_size,
    }
    # Those that are not known are 0.
    return {name: fact for name, fact in facts.items() if fact}


def _list_capabilities(engine: TextEngine | PoolingEngine) -> Iterator[str]:
    if isinstance(engine, PoolingEngine):
        if engine.pooling.task == "embed":
            yield "embedding"
        return
    yield "completion"
    renderer = engine.renderer
    if renderer.tool_format is not None:
        yield "tools"
    if renderer.fills_in:
        yield "insert"
    if engine.info.takes_images:
        yield "vision"
    if renderer.separates_reasoning:
        yield "thinking"


def _find_family(info: ModelInfo) -> str:
    return _CLASS_END.sub("", info.architecture).lower()


def _find_change(info: ModelInfo | None) -> datetime:
    changed_at = 0.0 if info is None else info.weights.changed_at
    return datetime.fromtimestamp(changed_at, timezone.utc)


def _digest(info: ModelInfo) -> str:
    return sha256(info.fingerprint.encode()).hexdigest()


def _shorten(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number or "")
