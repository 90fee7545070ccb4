"""Endpoints for operators and client libraries: health, version, metrics, model.

None of them waits for a renderer worker or for the device.
"""

from __future__ import annotations

from functools import partial
import time
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response

from ...errors import EndpointOff, EngineStalled, TrioserveError
from ...frontend import PoolingEngine, TextEngine
from ...http.record.descriptions import (
    ModelCard,
    ModelList,
    TokenizerInfo,
    Version,
    describe_model,
)
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import (
    PlainAnswer,
    make_error,
    make_json,
    respond_json,
)
from ...types.version import __version__
from ..metrics import render_all_metrics, render_metrics
from .probes import Probe

_STARTED_AT = int(time.time())

# The empty answer of a Quart app.
_WELL = PlainAnswer(content=b"", content_type="text/html; charset=utf-8")

_NAMED_TOKENS: Final = tuple(
    name for name in TokenizerInfo.__struct_fields__ if name.endswith("_token")
)


@Probe
def answer_health(state: ServerState) -> PlainAnswer:
    """Answer 200 while the server takes requests, and 503 otherwise."""
    if state.is_healthy:
        return _WELL
    return make_error(state.find_illness(), 503)


@Probe
def answer_live(state: ServerState) -> PlainAnswer:
    """Answer 200 while the event loop runs."""
    return _WELL


@Probe
def answer_ready(state: ServerState) -> PlainAnswer:
    """Answer 200 while a short request would be taken, and 503 otherwise."""
    try:
        state.check_ready()
    except TrioserveError as error:
        return make_error(error, 503)
    return _WELL


@Probe
def answer_progress(state: ServerState) -> PlainAnswer:
    """Answer 200 while the engine makes progress, and 503 otherwise.

    A restart helps if this answers 503. If /health answers 503 because of a drain, a
    restart would cut the streams that the drain waits for.
    """
    if state.makes_progress:
        return _WELL
    return make_error(EngineStalled(state.stalled_seconds), 503)


@Probe
def answer_version(state: ServerState) -> PlainAnswer:
    """Report the version of the server."""
    return make_json(Version(version=__version__))


async def _join_metrics(state: ServerState) -> PlainAnswer:
    content = await render_all_metrics(state)
    return PlainAnswer(content=content, content_type=CONTENT_TYPE_LATEST)


@partial(Probe, report_all=_join_metrics)
def answer_metrics(state: ServerState) -> PlainAnswer:
    """Report all metrics for Prometheus."""
    return PlainAnswer(content=render_metrics(state), content_type=CONTENT_TYPE_LATEST)


async def answer_models(state: ServerState, request: ScopedRequest) -> Response:
    """List the one model that is served."""
    return respond_json(ModelList(data=(_describe(state.require_engine()),)))


async def answer_model(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the served model, if the path ends with its name."""
    assert request.view_args is not None, "the route has a part for the name"
    # Werkzeug takes a slash at the end of the path as part of the name.
    name = request.view_args["model"]
    return respond_json(_describe(state.require_engine(name.removesuffix("/") or name)))


def _describe(engine: TextEngine | PoolingEngine) -> ModelCard:
    task = engine.pooling.task if isinstance(engine, PoolingEngine) else "generate"
    return describe_model(engine.info, task=task, created=_STARTED_AT)


async def answer_tokenizer_info(state: ServerState, request: ScopedRequest) -> Response:
    """Describe the tokenizer, if an option allows it."""
    if not state.config.enable_tokenizer_info_endpoint:
        raise EndpointOff("--enable-tokenizer-info-endpoint")
    engine = state.require_engine()
    tokenizer = engine.renderer.model_tokenizer
    named = tokenizer.special_tokens
    return respond_json(
        TokenizerInfo(
            tokenizer_class=tokenizer.class_name,
            **{name: named[name] for name in _NAMED_TOKENS if name in named},
            extra_special_tokens=tokenizer.extra_special_tokens,
            padding_side=tokenizer.padding_side,
            model_max_length=engine.info.max_model_len,
            chat_template=tokenizer.chat_templates.get("default"),
        )
    )
