"""A core, made from a configuration: it loads a model and steps it.

Modules that import torch are imported where they are needed. That takes seconds, and a
mistake in an option is reported without them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ..config import EngineConfig
from ..executor.pipeline.pipeline import open_pipeline
from ..processes.threads.fresh_thread import run_in_fresh_thread
from ..processes.threads.stopping import checking_torch_calls
from ..types.logits import LogitsProcessor
from ..weights import resolve_description
from .generation_core import build_generation_core, build_pipeline_core
from .loaded import LoadedCore
from .plugins import load_logits_processors
from .pooling_core import build_pooling_core
from .shard_count import check_shard_count
from .shortage import telling_shortage
from .source import ModelKind, Source, check_one_process, find_source


@asynccontextmanager
async def open_core(
    config: EngineConfig, model_kind: ModelKind, source: Source | None = None
) -> AsyncIterator[LoadedCore]:
    """Load a model, in this process or spread over a pipeline of processes.

    The processes end with the block.

    Args:
      source: the place of the model; None lets this function find it.

    Raises:
      StartupError, StageDied
    """
    if config.parallel.world_size == 1:
        with telling_shortage():
            core = await run_in_fresh_thread(
                partial(build_core, config, model_kind, source)
            )
        yield core
        return
    if model_kind == "pooling":
        check_one_process(config)
    with telling_shortage():
        found = await run_in_fresh_thread(partial(_find_for_pipeline, config, source))
    async with open_pipeline(config) as pipeline:
        yield await build_pipeline_core(config, pipeline, *found)


def build_core(
    config: EngineConfig, model_kind: ModelKind, source: Source | None
) -> LoadedCore:
    if source is None:
        source = find_source(config, model_kind)
    with checking_torch_calls():
        if source.task == "generate":
            return build_generation_core(config, source)
        return build_pooling_core(config, source, source.task)


def _find_for_pipeline(
    config: EngineConfig, source: Source | None
) -> tuple[Source, tuple[type[LogitsProcessor], ...]]:
    """Find the model and the plug-ins for the engine of a pipeline.

    The stages find out the task of the model, and refuse unsupported models. So this
    process does not import torch, which takes seconds and hundreds of megabytes.
    """
    # First, so that a mistake in an option is reported before gigabytes are read.
    processors = load_logits_processors(config.model.logits_processor)
    if source is None:
        weights = resolve_description(config.model.model)
        source = Source(weights=weights, task="generate")
    check_shard_count(source.weights.folder, config.parallel.tensor_parallel_size)
    return source, processors
