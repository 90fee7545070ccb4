"""The core of a model that pools."""

from __future__ import annotations

from dataclasses import replace
import logging

from ..config import EngineConfig
from ..engine.pooling.core import LocalPoolingCore
from ..executor import LocalExecutor
from ..types.pooling import PoolingTask
from ..weights import complete_weights, measure_weights
from .limits import make_pooling_scheduler
from .loaded import LoadedCore, add_names, fingerprint_model
from .source import Source

logger = logging.getLogger(__name__)


def build_pooling_core(
    config: EngineConfig, source: Source, task: PoolingTask
) -> LoadedCore:
    from ..model.encoder import check_encoder, load_encoder
    from ..model.pooling import PoolingRunner, check_pooling

    check_pooling(task, source.sentence, config.pooling)
    check_encoder(
        source.weights.folder, config.model, task=task, sentence=source.sentence
    )
    weights = complete_weights(source.weights)
    encoder = load_encoder(
        weights.folder,
        config.model,
        name=weights.name,
        task=task,
        sentence=source.sentence,
    )
    info = replace(
        add_names(encoder.info, config.model),
        fingerprint=fingerprint_model(
            weights.folder, encoder.info.dtype, encoder.info.kernels
        ),
        weights=measure_weights(weights),
        device_type=encoder.device.type,
    )
    runner = PoolingRunner(encoder, weights.folder, source.sentence, config.pooling)
    runner.warm_up()
    logger.info("loaded %s", info.name)
    logger.info("longest input: %d tokens", info.max_model_len)
    logger.info("task: %s, %d numbers each", task, runner.info.num_outputs)
    core = LocalPoolingCore(
        make_pooling_scheduler(config.scheduler, encoder.device.type),
        LocalExecutor(runner.step),
    )
    return LoadedCore(core=core, info=info, pooling=runner.info)
