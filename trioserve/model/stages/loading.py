"""Load one stage of a model, or say in one sentence why it cannot be cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ...config import ModelConfig
from ...errors import UnsupportedModel
from ..attention import AttentionDoor
from ..loading import (
    ModelFacts,
    check_causality,
    check_windows,
    describe,
    find_class,
    make_ready,
    read_facts,
    read_weights,
    shorten,
    takes_logits_to_keep,
)
from ..probe import UnfitLayer
from .cutting import drop_unused, find_entrance, make_stage_class
from .probing import probe_stage
from .shares import share_layers
from .skeleton import find_skeleton
from .stage import LoadedStage


def load_stage(
    folder: Path, config: ModelConfig, *, name: str, stage: int, num_stages: int
) -> LoadedStage:
    """Load one stage's part of a model; nothing else is read or held.

    Args:
      folder, config, name: as for load_model.
      stage: from 0.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention, or not in stages.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option asks for what the model or the machine has not.
    """
    facts = read_facts(folder, config)
    try:
        return _load(folder, config, facts, name, stage, num_stages)
    except UnfitLayer as error:
        raise UnsupportedModel(
            facts.architecture, f"it cannot be cut into stages: {error}"
        ) from None


def _load(
    folder: Path,
    config: ModelConfig,
    facts: ModelFacts,
    name: str,
    stage: int,
    num_stages: int,
) -> LoadedStage:
    whole = _build_on_meta(facts)
    skeleton = find_skeleton(whole)
    share = share_layers(
        skeleton.layer_costs, head_cost=skeleton.head_cost, num_stages=num_stages
    )[stage]
    model_class = make_stage_class(type(whole), skeleton, share)
    model = read_weights(model_class, folder, config, attention=facts.attention)
    drop_unused(model, skeleton, share)
    make_ready(model, facts)
    loaded = LoadedStage(
        model=model,
        info=describe(model, facts, name=name, layers=(), whole=whole),
        door=AttentionDoor(model),
        layers=(),
        takes_logits_to_keep=takes_logits_to_keep(model),
        vision=facts.vision,
        share=share,
        entrance=None if share.is_first else find_entrance(model, skeleton, share),
        hidden_width=skeleton.hidden_width,
        embedding_width=skeleton.embedding_width,
    )
    layers = probe_stage(loaded)
    check_causality(layers)
    check_windows(facts.config, layers, slice(share.begin, share.end))
    info = describe(model, facts, name=name, layers=layers, whole=whole)
    return replace(loaded, layers=layers, info=info)


def _build_on_meta(facts: ModelFacts) -> PreTrainedModel:
    """Build the whole model without memory for its weights."""
    model_class: Any = find_class(facts.config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = model_class._from_config(
                facts.config, attn_implementation=facts.attention
            )
    except Exception as error:
        # Some constructors compute numbers, which there are none of.
        raise UnfitLayer(
            f"it cannot be built without memory ({shorten(error)})"
        ) from error
    model.eval()
    return model
