"""The core of a model that pools."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
import logging
from typing import TYPE_CHECKING

from ..config import EngineConfig
from ..engine.pooling.core import LocalPoolingCore
from ..errors import InvalidConfig
from ..executor import LocalExecutor, RestingExecutor
from ..types.pooling import PoolingPlan, PoolingResult, PoolingTask
from ..types.sentence import SentenceFolder
from ..weights import Weights, complete_weights, measure_weights
from .limits import make_pooling_scheduler
from .loaded import LoadedCore, add_names, fingerprint_model
from .resting import make_idle_rule, rest_between
from .source import Source

if TYPE_CHECKING:
    from ..model.encoder import LoadedEncoder
    from ..model.pooling import PoolingRunner

logger = logging.getLogger(__name__)


def build_pooling_core(
    config: EngineConfig, source: Source, task: PoolingTask
) -> LoadedCore:
    from ..model.encoder import check_encoder
    from ..model.pooling import check_pooling

    if config.sleep.sleep_level == 1:
        raise InvalidConfig(
            "sleep_level",
            "1 is only possible for a model that generates: others have no KV cache",
        )
    check_pooling(task, source.sentence, config.pooling)
    check_encoder(
        source.weights.folder, config.model, task=task, sentence=source.sentence
    )
    weights = complete_weights(source.weights)
    load = partial(_load, config, weights, source.sentence, task)
    encoder, runner = load()
    info = replace(
        add_names(encoder.info, config.model),
        fingerprint=fingerprint_model(
            weights.folder, encoder.info.dtype, encoder.info.kernels
        ),
        weights=measure_weights(weights),
        device_type=encoder.device.type,
    )
    logger.info("loaded %s", info.name)
    logger.info("longest input: %d tokens", info.max_model_len)
    logger.info("task: %s, %d numbers each", task, runner.info.num_outputs)
    executor: RestingExecutor[PoolingPlan, PoolingResult] = rest_between(
        LocalExecutor(runner.step), lambda: LocalExecutor(load()[1].step)
    )
    core = LocalPoolingCore(
        make_pooling_scheduler(config.scheduler, encoder.device.type),
        executor,
        memory=executor,
        idle=make_idle_rule(config.sleep),
    )
    return LoadedCore(core=core, info=info, pooling=runner.info)


def _load(
    config: EngineConfig,
    weights: Weights,
    sentence: SentenceFolder | None,
    task: PoolingTask,
) -> tuple[LoadedEncoder, PoolingRunner]:
    """Load a model and run its first step."""
    from ..model.encoder import load_encoder
    from ..model.pooling import PoolingRunner

    encoder = load_encoder(
        weights.folder, config.model, name=weights.name, task=task, sentence=sentence
    )
    runner = PoolingRunner(encoder, weights.folder, sentence, config.pooling)
    runner.warm_up()
    return encoder, runner
