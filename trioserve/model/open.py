"""The one choice of a loader: for a whole model, a stage of a pipeline, and a shard.

plain       a Llama without anything special runs on the kernels, without transformers
packed      the kernels pack the blocks of a GGUF file as they are
modules     transformers builds all other models; the kernels are compared with its modules

transformers takes seconds to import, so each loader is imported when its turn comes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..config import ModelConfig
from ..types.gguf import GgufFile
from ..types.stage_place import StagePlace

if TYPE_CHECKING:
    from .loading.files.cache_outline import Outline
    from .loading.preview import Preview
    from .runtimes.loaded import LoadedModel
    from .shards.group import TensorGroup
    from .stages.stage import LoadedStage


def outline(
    folder: Path, config: ModelConfig, place: StagePlace | None = None
) -> Outline | None:
    """Return the facts that decide the KV cache; None if only the weights tell them.

    Args:
      place: the stage or the shard; None is the whole model.

    Raises: the errors of `load`.
    """
    if place is None:
        from .loading.plain.llama import outline_plain

        found = outline_plain(folder, config)
        if found is None:
            from .loading.outline import outline_model

            found = outline_model(folder, config)
        return found
    from .stages.plain import outline_plain_stage

    found = outline_plain_stage(folder, config, place=place)
    if found is None:
        from .stages.loading import outline_stage

        found = outline_stage(folder, config, place=place)
    return found


def preview(folder: Path, config: ModelConfig) -> Preview:
    """Return how a whole model would run, by its configuration alone.

    Raises: the errors of `load`.
    """
    from .loading.preview import preview_model

    return preview_model(folder, config)


def load(folder: Path, config: ModelConfig, *, name: str) -> LoadedModel:
    """Load a whole model from safetensors.

    Args:
      folder: in Hugging Face layout.
      name: the model's name for clients.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine.
      NotEnoughMemory: the device can never hold its weights.
    """
    from .loading.plain.llama import load_plain
    from .loading.weights_memory import check_weights_fit

    check_weights_fit(folder, config)
    model = load_plain(folder, config, name=name)
    if model is None:
        from .loading.load import load_model

        model = load_model(folder, config, name=name)
    return model


def load_blocks(
    folder: Path, config: ModelConfig, file: GgufFile, *, name: str
) -> LoadedModel | None:
    """Load a whole model with the weights in its GGUF file; None if it must be converted.

    Args:
      folder: holds config.json.

    Raises: the errors of `load`.
    """
    from .loading.plain.llama import load_plain

    model = load_plain(folder, config, name=name, file=file)
    if model is None:
        from .loading.packed import load_packed

        model = load_packed(folder, file, config, name=name)
    return model


def load_part(
    folder: Path,
    config: ModelConfig,
    *,
    name: str,
    place: StagePlace,
    group: TensorGroup | None,
) -> LoadedStage:
    """Load a stage, or a shard of it, from safetensors.

    Args:
      folder, config, name: as for `load`.
      group: the processes that share the layers, if they are connected already.

    Raises: the errors of `load`.
    """
    from .stages.plain import load_plain_stage

    stage = load_plain_stage(folder, config, name=name, place=place)
    if stage is None:
        from .stages.loading import load_stage

        stage = load_stage(folder, config, name=name, place=place, group=group)
    return stage
