"""A core, made from a configuration: it loads a model and steps it.

Modules that import torch are imported where they are needed. That takes seconds, and a
mistake in an option is reported without them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
import json
from pathlib import Path

from ..config import EngineConfig
from ..errors import InvalidConfig
from ..processes.threads.fresh_thread import run_in_fresh_thread
from ..processes.threads.stopping import checking_torch_calls
from ..types.logits import LogitsProcessor
from ..weights import resolve_description
from .generation_core import build_generation_core, build_pipeline_core
from .loaded import LoadedCore
from .plugins import load_logits_processors
from .pooling_core import build_pooling_core
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
    async with AsyncExitStack() as stack:
        yield await build_pipeline_core(config, stack, *found)


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


# The number of heads of queries, by the names of transformers' configurations.
_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads")


def check_shard_count(folder: Path, num_shards: int) -> None:
    """Refuse more shards than a model has heads; shards look at the rest.

    Args:
      folder: of the model, with its config.json.

    Raises:
      InvalidConfig
    """
    num_heads = _read_num_heads(folder)
    if num_heads is not None and num_shards > num_heads:
        raise InvalidConfig(
            "tensor_parallel_size",
            f"{num_shards} processes cannot share {num_heads} heads",
        )


def _read_num_heads(folder: Path) -> int | None:
    """Return the heads of a model; None if a process has to find out."""
    try:
        fields = json.loads((folder / "config.json").read_bytes())
        fields = {**fields, **fields.get("text_config", {})}
        return next(
            (int(fields[name]) for name in _HEAD_COUNTS if name in fields), None
        )
    # A broken file is refused where it is read for good.
    except (OSError, ValueError, TypeError, AttributeError):
        return None
