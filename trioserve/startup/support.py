"""The answer to whether a model would be served, before its weights are fetched or read."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import EngineConfig
from ..errors import (
    InvalidConfig,
    UnsupportedModel,
    UnsupportedQuantization,
)
from ..types.stage_place import StagePlace
from ..types.windows import WindowLayers
from .source import Source, find_source


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """The answer.

    Args:
      json: Print JSON.
    """

    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """The options of `trioserve models check`."""

    answer: AnswerConfig = field(default_factory=AnswerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The answer for one model.

    Args:
      runs: whether it would be served.
      reason: the reason why not.
      task: as in the option --task; None if nobody can tell.
      takes_images: it reads images, too.
      no_images: the reason why a model that could read images reads text alone.
      kernels: native, or torch for transformers' modules.
      no_kernels: the reason for torch.
      architecture, max_model_len, dtype, keeps_weights, kv_bytes_per_token, windows,
        state_bytes: as in Preview.
    """

    runs: bool
    reason: str | None = None
    task: str | None = None
    takes_images: bool = False
    no_images: str | None = None
    kernels: str | None = None
    no_kernels: str | None = None
    architecture: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    keeps_weights: bool = False
    kv_bytes_per_token: int | None = None
    windows: WindowLayers | None = None
    state_bytes: int | None = None


def check_support(config: EngineConfig) -> Support:
    """Return whether a model would be served, by its configuration alone.

    Args:
      config: as of `trioserve serve`. Of a model on the hub, all files but the weights
        are downloaded; a folder needs config.json alone.

    Raises:
      StartupError: there is no such model, or its files cannot be read.
    """
    task = None
    try:
        source = find_source(config, "all", needs_weights=False)
        task = source.task
        if task == "generate":
            return _preview(config, source)
        return _check_encoder(config, source)
    except (UnsupportedModel, UnsupportedQuantization, InvalidConfig) as error:
        return Support(runs=False, task=task, reason=str(error))


def _preview(config: EngineConfig, source: Source) -> Support:
    from ..model.open import outline, preview
    from ..types.model_info import SEES_NO_IMAGES

    found = preview(source.weights.folder, config.model)
    parallel = config.parallel
    for rank in range(parallel.world_size if parallel.world_size > 1 else 0):
        place = StagePlace.of_rank(
            rank,
            num_stages=parallel.pipeline_parallel_size,
            num_shards=parallel.tensor_parallel_size,
        )
        outline(source.weights.folder, config.model, place)
    sees_text_alone = source.image_refusal == SEES_NO_IMAGES
    return Support(
        runs=True,
        task="generate",
        takes_images=source.image_refusal is None,
        no_images=None if sees_text_alone else source.image_refusal,
        kernels="torch" if found.no_kernels else "native",
        no_kernels=found.no_kernels,
        architecture=found.architecture,
        max_model_len=found.max_model_len,
        dtype=found.dtype,
        keeps_weights=found.keeps_weights,
        kv_bytes_per_token=found.kv_bytes_per_token,
        windows=found.windows,
        state_bytes=found.state_bytes,
    )


def _check_encoder(config: EngineConfig, source: Source) -> Support:
    from ..model.encoder import check_encoder

    assert source.task != "generate", "others pool"
    check_encoder(
        source.weights.folder, config.model, task=source.task, sentence=source.sentence
    )
    return Support(runs=True, task=source.task)
