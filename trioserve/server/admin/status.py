"""Endpoints for monitors: health, version, metrics.

None of them waits for a renderer worker or for the device.
"""

from __future__ import annotations

from functools import partial

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from ...errors import EngineStalled, TrioserveError
from ...http.state import ServerState
from ...http.wire.respond import PlainAnswer, make_error, make_json
from ...types.version import __version__
from ..metrics import render_all_metrics, render_metrics
from .probes import Probe

# The empty answer of a Quart app.
_WELL = PlainAnswer(content=b"", content_type="text/html; charset=utf-8")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /version."""

    version: str


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
