"""All metrics, and the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric as Family

from ...frontend import PoolingEngine, TextEngine
from ...http.keys.siblings import ReadMetrics, ask_siblings
from ...http.state import ServerState
from ...observe.exposition import (
    Joining,
    Rows,
    Samples,
    collect_rows,
    join_families,
    label_families,
    read_samples,
    render_families,
)
from ...render import PoolingRenderer, Renderer
from .engine import ENGINE, GENERATION, POOLING, SERVED
from .models import MODELS
from .rendering import IMAGES, RENDERER, STRUCTURES, TEMPLATES
from .requests import GENERATION_REQUESTS, KEYS, REQUESTS
from .server import LOOP, SERVER

METRICS: Rows[Any] = (
    *(*SERVER, *LOOP, *KEYS, *REQUESTS, *GENERATION_REQUESTS),
    *MODELS,
    *(*SERVED, *ENGINE, *GENERATION, *POOLING),
    *(*RENDERER, *STRUCTURES, *TEMPLATES, *IMAGES),
)

# prometheus_client's names of counters have no ending.
_JOININGS: Mapping[str, Joining] = {
    each.name.removesuffix("_total"): each.joins for each in METRICS
}


def render_metrics(state: ServerState) -> bytes:
    """Return the text that Prometheus reads."""
    return render_families(collect_families(state))


async def render_all_metrics(state: ServerState) -> bytes:
    """Return the text with the numbers of all HTTP processes."""
    others = await ask_siblings(state.siblings, ReadMetrics(), dict[str, Samples])
    families = collect_families(state)
    return render_families(join_families(families, others, _JOININGS))


def list_samples(state: ServerState) -> dict[str, Samples]:
    """Return the numbers of this process, for another HTTP process."""
    return read_samples(collect_families(state))


def collect_families(state: ServerState) -> Iterator[Family]:
    """Yield all metrics with their values."""
    yield from collect_rows(SERVER, state)
    yield from collect_rows(LOOP, state.loop_stall.statistics())
    yield from collect_rows(KEYS, state.key_uses)
    yield from collect_rows(REQUESTS, state.counts)
    if state.models is not None:
        yield from collect_rows(MODELS, state.models)
        yield from collect_rows(GENERATION_REQUESTS, state.counts)
        yield from label_families(
            "model_name",
            {each.info.name: _collect_model(each) for each in state.engines},
        )
    elif state.engine is not None:
        if isinstance(state.engine, TextEngine):
            yield from collect_rows(GENERATION_REQUESTS, state.counts)
        yield from _collect_model(state.engine)


def _collect_model(engine: TextEngine | PoolingEngine) -> Iterator[Family]:
    yield from collect_rows(SERVED, engine)
    yield from collect_rows(ENGINE, engine.engine)
    if isinstance(engine, PoolingEngine):
        yield from collect_rows(POOLING, engine.engine)
    else:
        yield from collect_rows(GENERATION, engine.engine)
    yield from _collect_renderer(engine.renderer)


def _collect_renderer(renderer: Renderer | PoolingRenderer) -> Iterator[Family]:
    yield from collect_rows(RENDERER, renderer)
    if isinstance(renderer, Renderer):
        yield from collect_rows(STRUCTURES, renderer.structures)
    if renderer.chats.processes is not None:
        yield from collect_rows(TEMPLATES, renderer.chats.processes)
    if renderer.images is not None:
        yield from collect_rows(IMAGES, renderer.images)
