"""Load one stage of a model, or say in one sentence why the model cannot be cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from ...config import ModelConfig
from ...errors import UnsupportedModel, shorten_message
from ..attention.bridge import AttentionContext
from ..attention.probe import UnfitLayer
from ..loading.architecture import check_causality, check_windows
from ..loading.cache_outline import Outline
from ..loading.facts import ModelFacts, read_facts
from ..loading.load import describe_model, make_ready, takes_logits_to_keep
from ..loading.native import load_on_kernels
from ..loading.outline import build_on_meta, describe_outline, outline_layers
from ..loading.weights import read_weights
from .cutting import drop_unused, find_entrance, make_stage_class
from .partition import Partition, partition_layers
from .probing import probe_stage
from .skeleton import Skeleton, find_skeleton
from .stage import LoadedStage


def load_stage(
    folder: Path, config: ModelConfig, *, name: str, stage: int, num_stages: int
) -> LoadedStage:
    """Load one stage of a model; no other weights are read or held.

    Args:
      folder, config, name: as for load_model.
      stage: from 0.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention, or not in stages.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine.
    """
    facts = read_facts(folder, config)
    try:
        return load_on_kernels(
            lambda: _load(folder, config, facts, name, stage, num_stages), config
        )
    except UnfitLayer as error:
        raise _refuse(facts, error) from None


def outline_stage(
    folder: Path, config: ModelConfig, *, stage: int, num_stages: int
) -> Outline | None:
    """Outline one stage of a model without its weights; see outline_model.

    Raises: the errors of load_stage.
    """
    facts = read_facts(folder, config)
    layers = outline_layers(facts)
    try:
        partition = _find_partition(
            find_skeleton(_build_whole(facts)), stage, num_stages
        )
    except UnfitLayer as error:
        raise _refuse(facts, error) from None
    if layers is None or len(layers) != partition.num_layers:
        return None
    return describe_outline(facts, config, layers[partition.begin : partition.end])


def _load(
    folder: Path,
    config: ModelConfig,
    facts: ModelFacts,
    name: str,
    stage: int,
    num_stages: int,
) -> LoadedStage:
    whole = _build_whole(facts)
    skeleton = find_skeleton(whole)
    partition = _find_partition(skeleton, stage, num_stages)
    model_class = make_stage_class(type(whole), skeleton, partition)
    model = read_weights(model_class, folder, config, attention=facts.attention)
    drop_unused(model, skeleton, partition)
    make_ready(model, facts)
    loaded = LoadedStage(
        model=model,
        info=describe_model(model, facts, name=name, layers=(), whole=whole),
        attention=AttentionContext(model),
        layers=(),
        takes_logits_to_keep=takes_logits_to_keep(model),
        vision=facts.vision,
        attention_backend=config.attention_backend,
        partition=partition,
        entrance=(
            None if partition.is_first else find_entrance(model, skeleton, partition)
        ),
        hidden_width=skeleton.hidden_width,
        embedding_width=skeleton.embedding_width,
    )
    layers = probe_stage(loaded)
    check_causality(layers)
    check_windows(facts.config, layers, slice(partition.begin, partition.end))
    info = describe_model(model, facts, name=name, layers=layers, whole=whole)
    return replace(loaded, layers=layers, info=info)


def _refuse(facts: ModelFacts, error: UnfitLayer) -> UnsupportedModel:
    return UnsupportedModel(
        facts.architecture, f"it cannot be cut into stages: {error}"
    )


def _build_whole(facts: ModelFacts) -> PreTrainedModel:
    try:
        return build_on_meta(facts)
    except Exception as error:
        raise UnfitLayer(
            f"it cannot be built without memory ({shorten_message(error)})"
        ) from error


def _find_partition(skeleton: Skeleton, stage: int, num_stages: int) -> Partition:
    return partition_layers(
        skeleton.layer_costs, head_cost=skeleton.head_cost, num_stages=num_stages
    )[stage]
