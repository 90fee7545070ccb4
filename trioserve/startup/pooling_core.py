"""The core of a model that pools."""

from __future__ import annotations

from dataclasses import replace
import logging

from ..config import EngineConfig
from ..engine import LocalPoolingCore
from ..errors import InvalidConfig
from ..executor import LocalExecutor
from ..types.pooling import PoolingTask, Task
from ..weights import complete_weights
from .limits import make_pooling_scheduler
from .loaded import LoadedCore, fingerprint_model
from .source import Source

logger = logging.getLogger(__name__)


def build_pooling_core(
    config: EngineConfig, source: Source, task: PoolingTask
) -> LoadedCore:
    from ..model.encoder import check_encoder, load_encoder
    from ..model.pooling import PoolingRunner, check_pooling

    _refuse_for_pooling("logits_processor", config.model.logits_processor, (), task)
    _refuse_for_pooling(
        "reasoning_parser", config.render.reasoning_parser, "none", task
    )
    _refuse_for_pooling(
        "max_step_seconds", config.scheduler.max_step_seconds, None, task
    )
    check_pooling(task, source.sentence, config.pooling)
    check_encoder(
        source.weights.folder, config.model, task=task, sentence=source.sentence
    )
    weights = complete_weights(source.weights)
    encoder = load_encoder(
        weights.folder,
        config.model,
        name=config.model.served_model_name or weights.name,
        task=task,
        sentence=source.sentence,
    )
    info = replace(
        encoder.info,
        fingerprint=fingerprint_model(weights.folder, encoder.info.dtype),
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


def _refuse_for_pooling(name: str, value: object, neutral: object, task: Task) -> None:
    """Refuse an option that has no effect on a model that pools."""
    if value != neutral:
        raise InvalidConfig(name, f"the model is served for {task} and does not write")
