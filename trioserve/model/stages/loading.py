"""Load one stage of a model, or say in one sentence why the model cannot be cut.

A stage may be split once more, into shards (../shards/).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from ...config import ModelConfig
from ...errors import InvalidConfig, shorten_message
from ...types.stage_place import WHOLE_LAYERS, StagePlace
from ..attention.bridge import AttentionContext
from ..attention.cache_memory import choose_kv_dtype
from ..attention.probe import UnfitLayer
from ..loading.files.architecture import check_causality, check_windows
from ..loading.files.cache_outline import Outline
from ..loading.files.facts import ModelFacts, read_facts
from ..loading.load import (
    describe_model,
    find_deepstack,
    load_keeping,
    make_ready,
    takes_logits_to_keep,
)
from ..loading.outline import build_on_meta, describe_outline, watch_outline
from ..loading.weights import read_weights
from ..shards.choose import ShardBuilder, cut_layers
from ..shards.group import TensorGroup
from ..states.modules import StatefulModules
from .cutting import drop_unused, find_entrance, make_stage_class
from .partition import Partition, partition_layers
from .probing import probe_stage
from .skeleton import Skeleton, find_skeleton
from .stage import LoadedStage


def load_stage(
    folder: Path,
    config: ModelConfig,
    *,
    name: str,
    place: StagePlace,
    group: TensorGroup | None = None,
) -> LoadedStage:
    """Load one stage of a model, or one shard of it; no other weights are held.

    Args:
      folder, config, name: as for load_model.
      group: the processes that share the layers, if they are connected already.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine; the model cannot be cut
        into stages, or its layers cannot be split.
    """

    def load(config: ModelConfig, facts: ModelFacts) -> LoadedStage:
        try:
            return _load(folder, config, facts, name, place, group)
        except UnfitLayer as error:
            raise _refuse(facts, error, place) from None

    return load_keeping(folder, config, load)


def outline_stage(
    folder: Path, config: ModelConfig, *, place: StagePlace
) -> Outline | None:
    """Outline one stage of a model without its weights; see outline_model.

    Raises: the errors of load_stage.
    """
    facts = read_facts(folder, config)
    watched = watch_outline(facts)
    try:
        _check_reach(facts, place)
        whole = _build_whole(facts)
        partition = _find_partition(facts, find_skeleton(whole), place)
        if place.shard != WHOLE_LAYERS:
            # It refuses what cannot be split.
            _make_builder(facts, whole, TensorGroup(place.shard))
    except UnfitLayer as error:
        raise _refuse(facts, error, place) from None
    # Layers with states call no attention, so others could not be told apart.
    if watched is None or len(watched.layers) != partition.num_layers:
        return None
    own = cut_layers(watched.layers[partition.begin : partition.end], place.shard)
    return describe_outline(facts, config, own)


def _load(
    folder: Path,
    config: ModelConfig,
    facts: ModelFacts,
    name: str,
    place: StagePlace,
    group: TensorGroup | None,
) -> LoadedStage:
    _check_reach(facts, place)
    whole = _build_whole(facts)
    skeleton = find_skeleton(whole)
    partition = _find_partition(facts, skeleton, place)
    builder = None
    if place.shard != WHOLE_LAYERS:
        builder = _make_builder(facts, whole, group or TensorGroup(place.shard))
    model_class = make_stage_class(
        type(whole),
        skeleton,
        partition,
        cut_weights=None if builder is None else builder.cut,
    )
    model = read_weights(
        model_class,
        folder,
        config,
        device=facts.device,
        attention=facts.attention,
        take_parts=None if builder is None else builder.take_parts,
        keeps=facts.keeps_weights,
    )
    drop_unused(model, skeleton, partition)
    make_ready(model, facts)
    if builder is not None:
        builder.group.wait_for_all()
    loaded = LoadedStage(
        model=model,
        info=describe_model(model, facts, config, name=name, layers=(), whole=whole),
        attention=AttentionContext(model),
        layers=(),
        stateful=StatefulModules(model),
        takes_logits_to_keep=takes_logits_to_keep(model),
        vision=facts.vision,
        deepstack=find_deepstack(model, facts) if partition.is_first else None,
        attention_backend=config.attention_backend,
        kv_dtype=choose_kv_dtype(config, model.dtype),
        tensor_group=None if builder is None else builder.group,
        wants_native=config.wants_native,
        partition=partition,
        entrance=(
            None if partition.is_first else find_entrance(model, skeleton, partition)
        ),
        hidden_width=skeleton.hidden_width,
        embedding_width=skeleton.embedding_width,
    )
    layers, states, products = probe_stage(loaded)
    check_causality(layers)
    check_windows(facts.config, layers, slice(partition.begin, partition.end))
    info = describe_model(
        *(model, facts, config),
        name=name,
        layers=layers,
        states=states,
        whole=whole,
    )
    return replace(
        loaded,
        layers=facts.mark(layers),
        states=states,
        info=info,
        products=products,
        cuts={} if builder is None else builder.find_cuts(products),
    )


def _check_reach(facts: ModelFacts, place: StagePlace) -> None:
    """Refuse models whose later layers need more than the output of earlier ones.

    Probing a stage finds the same, but only after its weights have been read.

    Raises:
      UnfitLayer
    """
    if place.num_stages == 1:
        return
    text_config = facts.config.get_text_config(decoder=True)
    if getattr(text_config, "hidden_size_per_layer_input", 0):
        raise UnfitLayer("every layer looks up the tokens again")
    if getattr(text_config, "num_kv_shared_layers", 0):
        raise UnfitLayer("its later layers read the keys and values of earlier ones")


def _make_builder(
    facts: ModelFacts, whole: PreTrainedModel, group: TensorGroup
) -> ShardBuilder:
    try:
        if facts.vision is not None:
            raise UnfitLayer("it reads images, which --text-only turns off")
        watched = watch_outline(facts)
        if watched is not None and watched.states:
            raise UnfitLayer("they keep states besides keys and values")
        layers = None if watched is None else watched.layers
        return ShardBuilder(whole, layers, group)
    except UnfitLayer as error:
        raise _refuse_shards(facts, error) from None


def _refuse(facts: ModelFacts, error: UnfitLayer, place: StagePlace) -> InvalidConfig:
    if place.num_stages == 1:
        return _refuse_shards(facts, error)
    return InvalidConfig(
        "pipeline_parallel_size",
        f"{facts.architecture} cannot be cut into stages: {error}",
    )


def _refuse_shards(facts: ModelFacts, error: UnfitLayer) -> InvalidConfig:
    return InvalidConfig(
        "tensor_parallel_size",
        f"the layers of {facts.architecture} cannot be split: {error}",
    )


def _build_whole(facts: ModelFacts) -> PreTrainedModel:
    try:
        return build_on_meta(facts)
    except Exception as error:
        raise UnfitLayer(
            f"it cannot be built without memory ({shorten_message(error)})"
        ) from error


def _find_partition(
    facts: ModelFacts, skeleton: Skeleton, place: StagePlace
) -> Partition:
    partitions = partition_layers(
        skeleton.layer_costs, head_cost=skeleton.head_cost, num_stages=place.num_stages
    )
    if partitions[0].end < facts.num_deepstack_layers:
        raise UnfitLayer(
            f"vectors of images are added behind its first {facts.num_deepstack_layers} "
            f"layers, and the first stage has {partitions[0].end}"
        )
    return partitions[place.stage]
