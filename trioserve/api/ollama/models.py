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
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import respond_json
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


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served.

    Args:
      size: bytes of the weights' files.
      digest: changes if the same request could get another answer.
    """

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: ModelDetails


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
    """List the one model that is served, once for each of its names, and its adapters."""
    engine = await state.require_engine(request.model)
    models = (_list(engine.find(name) or engine, name) for name in engine.list_names())
    return respond_json(ModelTags(models=tuple(models)))


async def answer_loaded(state: ServerState, request: ScopedRequest) -> Response:
    """List the model that is loaded: always the one that is served."""
    engine = await state.require_engine(request.model)
    info = engine.info
    size = info.weights.num_bytes
    loaded = LoadedModel(
        name=info.name,
        model=info.name,
        size=size,
        digest=_digest(engine),
        details=_describe(engine),
        size_vram=0 if info.device_type == "cpu" else size,
        context_length=info.max_model_len,
    )
    return respond_json(LoadedModels(models=(loaded,)))


async def answer_show(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the model, and what it can do."""
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
            details=_describe(engine),
            model_info=_list_facts(engine),
            capabilities=tuple(_list_capabilities(engine)),
            modified_at=_find_change(engine),
        )
    )


async def answer_ollama_version(state: ServerState, request: ScopedRequest) -> Response:
    """Report the version of Ollama's API."""
    return respond_json(OllamaVersion(version=API_VERSION, trioserve=__version__))


def _list(engine: TextEngine | PoolingEngine, name: str) -> ListedModel:
    return ListedModel(
        name=name,
        model=name,
        modified_at=_find_change(engine),
        size=engine.info.weights.num_bytes,
        digest=_digest(engine),
        details=_describe(engine),
    )


def _describe(engine: TextEngine | PoolingEngine) -> ModelDetails:
    family, weights = _find_family(engine), engine.info.weights
    return ModelDetails(
        parent_model=engine.parent or "",
        format=weights.form,
        family=family,
        families=(family,),
        parameter_size=_shorten(weights.num_parameters),
        quantization_level=weights.number_type,
    )


def _list_facts(engine: TextEngine | PoolingEngine) -> dict[str, str | int]:
    info, family = engine.info, _find_family(engine)
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


def _find_family(engine: TextEngine | PoolingEngine) -> str:
    return _CLASS_END.sub("", engine.info.architecture).lower()


def _find_change(engine: TextEngine | PoolingEngine) -> datetime:
    return datetime.fromtimestamp(engine.info.weights.changed_at, timezone.utc)


def _digest(engine: TextEngine | PoolingEngine) -> str:
    return sha256(engine.info.fingerprint.encode()).hexdigest()


def _shorten(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number or "")
