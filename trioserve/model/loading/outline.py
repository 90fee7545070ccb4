"""The size of a model's KV cache, found before its weights are read.

The model is built without memory (on torch's `meta` device) and run once. This takes 0.2 s
for 30 layers, while reading the weights may take minutes. 101 architectures of transformers
5.23 were tried, small and with random weights: 100 gave the same result with and without
weights. One, JetMoE, reads numbers back, and gets no outline.
"""

from __future__ import annotations

import copy
from dataclasses import replace
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ...config import ModelConfig
from ...errors import UnsupportedModel, shorten_message
from ..attention.cache_memory import choose_kv_dtype, count_kv_bytes
from ..attention.probe import NO_INTERFACE, LayerSpec, UnfitLayer, WrongSizes
from ..attention.registered import IMPLEMENTATION
from ..attention.windows import find_windows
from ..states.spec import StateSpec, count_state_bytes
from .adapt.indexers import leave_out_indexers
from .adapt.latents import keep_latents
from .dequantise.quantisation import plan_dequantisation
from .files.architecture import has_attention_interface
from .files.cache_outline import Outline
from .files.facts import ModelFacts, read_facts
from .files.faults import name_faults
from .pruning import choose_class
from .watching import WatchedModel, watch_model

logger = logging.getLogger(__name__)


def outline_model(folder: Path, config: ModelConfig) -> Outline | None:
    """Outline a model without its weights.

    Returns:
      None if the model cannot run without weights.

    Raises:
      UnsupportedModel, UnsupportedQuantization, WeightsBroken, InvalidConfig: load_model
        would raise the same.
    """
    facts = read_facts(folder, config)
    watched = watch_outline(facts)
    if watched is None:
        return None
    return describe_outline(facts, config, watched.layers, watched.states)


def watch_outline(facts: ModelFacts) -> WatchedModel | None:
    """Watch a model without weights; None if it cannot run so.

    Raises:
      UnsupportedModel
    """
    try:
        return _watch_on_meta(facts)
    except UnfitLayer as error:
        faults = _name_faults(facts, may_be_positive=isinstance(error, WrongSizes))
        raise UnsupportedModel(facts.architecture, faults or str(error)) from None
    except Exception as error:
        # Some classes choose their attention from a table of their own.
        has_table = isinstance(error, KeyError) and error.args == (IMPLEMENTATION,)
        has_interface = has_attention_interface(choose_class(facts))
        if has_table or (facts.is_of_text and not has_interface):
            raise UnsupportedModel(facts.architecture, NO_INTERFACE) from None
        needs_numbers = isinstance(error, NotImplementedError) or "meta" in str(error)
        faults = _name_faults(facts, may_be_positive=not needs_numbers)
        if faults is not None:
            raise UnsupportedModel(facts.architecture, faults) from None
        _check_constructor(facts)
        # Some models read the numbers of tensors, which are missing here.
        logger.debug("the model cannot run without its weights", exc_info=True)
        return None


def _check_constructor(facts: ModelFacts) -> None:
    """Refuse a model that cannot be built: a load builds it on this device, too."""
    try:
        build_on_meta(facts, torch.bfloat16)
    except Exception as error:
        why = shorten_message(error)
        reason = f"no model can be built from its configuration ({why})"
        raise UnsupportedModel(facts.architecture, reason) from None


def _watch_on_meta(facts: ModelFacts) -> WatchedModel:
    # On this device, products of experts do not run in float32.
    model = build_on_meta(facts, torch.bfloat16)
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            raise ValueError(f"{name} has no numbers")
    leave_out_indexers(model)
    keep_latents(model)
    return watch_model(model)


def _name_faults(facts: ModelFacts, *, may_be_positive: bool) -> str | None:
    """Return a sentence with the numbers of the configuration that are at fault."""

    def works(config: PreTrainedConfig) -> bool:
        _watch_on_meta(replace(facts, config=config))
        return True

    return name_faults(facts.config, works, may_be_positive=may_be_positive)


def describe_outline(
    facts: ModelFacts,
    config: ModelConfig,
    layers: tuple[LayerSpec, ...],
    states: tuple[StateSpec, ...] = (),
) -> Outline | None:
    """Return the outline of some layers; None if the type of their numbers is unknown."""
    dtype = find_dtype(facts, config)
    if dtype is None:
        return None
    kv_dtype = choose_kv_dtype(config, dtype)
    return Outline(
        kv_bytes_per_token=count_kv_bytes(layers, kv_dtype),
        windows=find_windows(layers, kv_dtype),
        state_bytes=count_state_bytes(states, dtype),
        max_model_len=facts.max_model_len,
        device=facts.device,
    )


def build_on_meta(
    facts: ModelFacts, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """Build the whole model without memory for its weights.

    Args:
      dtype: None is the configuration's own.

    Raises:
      Any error of its constructor, which may need numbers that are not there.
    """
    model_class: Any = choose_class(facts)
    # transformers would write the type into the configuration.
    config = copy.deepcopy(facts.config)
    with torch.device("meta"):
        model: PreTrainedModel = model_class._from_config(
            config,
            attn_implementation=facts.attention,
            dtype=dtype or config.dtype,
        )
    model.eval()
    return model


def find_dtype(facts: ModelFacts, config: ModelConfig) -> torch.dtype | None:
    """Return the type of a model's numbers; None if only its weights tell it."""
    if config.dtype != "auto":
        chosen: torch.dtype = getattr(torch, config.dtype)
        return chosen
    dequantisation = plan_dequantisation(facts.config, None)
    if dequantisation is not None:
        return dequantisation.dtype
    dtype = facts.config.dtype
    if dtype == torch.float16 and facts.keeps_weights and facts.device.type == "cpu":
        # Kernels for CPUs have no float16. Most weights have fewer bits, whose errors are larger.
        return torch.bfloat16
    return dtype if isinstance(dtype, torch.dtype) else None
