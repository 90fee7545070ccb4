"""Load one stage of a plain Llama without transformers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ...config import ModelConfig
from ...types.stage_place import WHOLE_LAYERS, StagePlace
from ..loading.files.cache_outline import Outline
from ..loading.plain.description import read_plain_config
from ..loading.plain.llama import load_plain, outline_plain
from ..loading.plain.tensors import count_parameters
from ..runtimes.loaded import LoadedModel
from .partition import Partition, partition_layers
from .stage import LoadedStage


def outline_plain_stage(
    folder: Path, config: ModelConfig, *, place: StagePlace
) -> Outline | None:
    """Outline one stage of a plain Llama; see outline_plain.

    Returns:
      None if transformers must be asked, by outline_stage

    Raises:
      InvalidConfig: an option does not fit the model or the machine.
    """
    partition = _find_partition(folder, place)
    if partition is None:
        return None
    return outline_plain(folder, config, layers=_list_layers(partition))


def load_plain_stage(
    folder: Path, config: ModelConfig, *, name: str, place: StagePlace
) -> LoadedStage | None:
    """Load one stage of a plain Llama on the native kernels; see load_plain.

    Args:
      folder, config, name: as for load_model.

    Returns:
      None if transformers must be asked, by load_stage

    Raises:
      InvalidConfig: an option does not fit the model or the machine.
    """
    partition = _find_partition(folder, place)
    if partition is None:
        return None
    layers = _list_layers(partition)
    model = load_plain(folder, config, name=name, layers=layers)
    if model is None:
        return None
    return LoadedStage(
        **{each.name: getattr(model, each.name) for each in fields(LoadedModel)},
        partition=partition,
        entrance=None,
        hidden_width=model.info.hidden_size,
        embedding_width=model.info.hidden_size,
    )


def _find_partition(folder: Path, place: StagePlace) -> Partition | None:
    """Return the layers of a stage; another stage may find them by its modules.

    Returns:
      None if transformers must be asked: for a model that it describes, or a shard
    """
    if place.shard != WHOLE_LAYERS:
        return None
    described = read_plain_config(folder)
    if described is None:
        return None
    layers, head = count_parameters(described)
    return partition_layers(layers, head_cost=head, num_stages=place.num_stages)[
        place.stage
    ]


def _list_layers(partition: Partition) -> range:
    return range(partition.begin, partition.end)
