"""The part of an engine that needs no weights: the renderer, and the loop over a core.

It is prepared before the core loads the weights, or at the same time. So its errors are
reported early, and not after gigabytes have been read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
import logging
from typing import Any

from ..config import EngineConfig
from ..engine.generation.engine import TokenEngine
from ..engine.pooling.engine import TensorEngine
from ..frontend import PoolingEngine, TextEngine
from ..processes.threads.fresh_thread import run_in_fresh_thread
from ..render import (
    PoolingParts,
    TextParts,
    load_pooling_parts,
    load_text_parts,
    make_pooling_renderer,
    make_renderer,
)
from ..types.logits import LogitsProcessor
from ..types.model_info import SEES_NO_IMAGES
from .limits import count_sequences
from .loaded import LoadedCore
from .plugins import load_logits_processors
from .shortage import telling_shortage
from .source import ModelKind, Source, find_source, guess_source, read_template

logger = logging.getLogger(__name__)

Reopen = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFrontend:
    """The front end for programs and HTTP, and the engine that must run for it."""

    served: TextEngine | PoolingEngine
    engine: TokenEngine | TensorEngine


class Frontend:
    """The renderer and the engine for one core, or for several that follow each other.

    Args:
      is_checked: another process checks whether the model can be served, so that this
        one need not import torch.
      first_id: see TokenEngine.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_kind: ModelKind,
        *,
        is_checked: bool,
        first_id: int = 0,
    ) -> None:
        self._config = config
        self._first_id = first_id
        self._model_kind: ModelKind = model_kind
        self._find = guess_source if is_checked else find_source
        self._prepared: _Prepared | None = None

    @property
    def source(self) -> Source:
        return self._get_prepared().source

    async def prepare(self) -> None:
        """Load the tokenizer and the templates; the second call does nothing.

        Raises:
          StartupError
        """
        if self._prepared is None:
            find = partial(self._find, self._config, self._model_kind)
            work = partial(_prepare, self._config, find)
            self._prepared = await run_in_fresh_thread(work)

    async def finish(
        self, core: LoadedCore, reopen: Reopen | None = None
    ) -> LoadedFrontend:
        """Join the renderer, the engine and a loaded core.

        Args:
          reopen: ends the core and returns a new one; None if that is not possible.
        """
        make = _finish_text if core.pooling is None else _finish_pooling
        prepared = self._get_prepared()
        # In a thread, because it reads the whole vocabulary.
        return await run_in_fresh_thread(
            partial(make, self._config, prepared, core, reopen, self._first_id)
        )

    def _get_prepared(self) -> _Prepared:
        assert self._prepared is not None, "prepare has been called"
        return self._prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    source: Source
    parts: TextParts | PoolingParts
    processors: tuple[type[LogitsProcessor], ...] = ()


@telling_shortage()
def _prepare(config: EngineConfig, find: Callable[[], Source]) -> _Prepared:
    """Load everything that needs no weights; blocks for seconds if it needs torch."""
    # First, because it needs no imports.
    template = read_template(config.model.chat_template)
    source = find()
    if source.task == "generate":
        return _prepare_text(config, source, template)
    parts = load_pooling_parts(
        source.weights.folder,
        task=source.task,
        sentence=source.sentence,
        chat_template=template,
    )
    return _Prepared(source=source, parts=parts)


def _prepare_text(
    config: EngineConfig, source: Source, template: str | None
) -> _Prepared:
    if source.image_refusal not in (None, SEES_NO_IMAGES):
        logger.info("images: refused; %s", source.image_refusal)
    # First, because some tokenizers take seconds.
    processors = load_logits_processors(config.model.logits_processor)
    parts = load_text_parts(
        source.weights.folder,
        config.render,
        media=config.media,
        image_refusal=source.image_refusal,
        chat_template=template,
    )
    return _Prepared(source=source, parts=parts, processors=processors)


def _finish_text(
    config: EngineConfig,
    prepared: _Prepared,
    core: LoadedCore,
    reopen: Reopen | None,
    first_id: int,
) -> LoadedFrontend:
    assert isinstance(prepared.parts, TextParts), "the core generates"
    renderer = make_renderer(prepared.parts, config.render, info=core.info)
    engine = TokenEngine(
        core.core,
        info=core.info,
        max_num_sequences=count_sequences(config.scheduler),
        max_num_running=config.scheduler.max_num_seqs,
        max_queued_tokens=config.scheduler.max_queued_tokens,
        scheduling_policy=config.scheduler.scheduling_policy,
        reopen=reopen if config.parallel.restart_stages else None,
        first_id=first_id,
    )
    served = TextEngine(engine, renderer, prepared.processors)
    return LoadedFrontend(served=served, engine=engine)


def _finish_pooling(
    config: EngineConfig,
    prepared: _Prepared,
    core: LoadedCore,
    reopen: Reopen | None,
    first_id: int,
) -> LoadedFrontend:
    assert isinstance(prepared.parts, PoolingParts), "the core pools"
    assert core.pooling is not None, "the core pools"
    renderer = make_pooling_renderer(
        prepared.parts, config.render, info=core.info, pooling=core.pooling
    )
    engine = TensorEngine(
        core.core,
        info=core.info,
        pooling=core.pooling,
        max_num_inputs=count_sequences(config.scheduler),
        max_queued_tokens=config.scheduler.max_queued_tokens,
        scheduling_policy=config.scheduler.scheduling_policy,
        first_id=first_id,
    )
    served = PoolingEngine(engine, renderer, long_texts=config.pooling.long_texts)
    return LoadedFrontend(served=served, engine=engine)
