"""The architectures that can be served."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from ....errors import UnsupportedModel
from ...attention.probe import LayerSpec, UnfitLayer
from ...runtimes.vision import has_vision
from ...states.spec import StateSpec, count_stateful_modules
from .layer_caches import count_stateful_layers, find_other_cache


def check_architecture(config: PreTrainedConfig) -> str:
    """Return the name of the class that will be built, if its configuration can be served.

    Whether its layers call attention in a way that can be served, the probe finds out
    (attention/probe.py), also before the weights are read.

    Raises:
      UnsupportedModel
    """
    model_class = find_class(config)
    architecture: str = model_class.__name__
    text_config = config.get_text_config(decoder=True)
    # Of a model that reads images, the text model has the layers.
    decoder_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text_config), model_class)
    if other_cache := find_other_cache(config, decoder_class):
        raise UnsupportedModel(architecture, other_cache)
    return architecture


def find_class(config: PreTrainedConfig) -> Any:
    """Return transformers' class for a model that generates text.

    Raises:
      UnsupportedModel: there is none, or it reads images and is not served.
    """
    declared = (config.architectures or [config.model_type])[0]
    if has_vision(config):
        mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    elif type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UnsupportedModel(
            declared,
            f"of models of the type {config.model_type}, neither the images nor the text "
            "alone are served",
        )
    else:
        raise UnsupportedModel(declared, "it is not a decoder that generates text")
    model_class = mapping[type(config)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def has_attention_interface(model_class: Any) -> bool:
    """Return whether transformers' module of a class knows its attention interface."""
    return "ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[model_class.__module__])


def check_positions(model: PreTrainedModel) -> None:
    """Refuse models that count positions by themselves, as if each text began at 0.

    Raises:
      UnfitLayer
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            if "position_ids" in inspect.signature(module.forward).parameters:
                return
    raise UnfitLayer("it counts the positions of tokens by itself")


def check_causality(layers: tuple[LayerSpec, ...]) -> None:
    """Refuse models whose tokens see later tokens.

    Raises:
      UnfitLayer
    """
    for layer in layers:
        if not layer.is_causal:
            raise UnfitLayer(f"{layer.module_name} looks at tokens that follow")


def check_states(config: PreTrainedConfig, states: tuple[StateSpec, ...]) -> None:
    """Refuse models with states that nobody asked for while they ran.

    Args:
      config: the model's.
      states: the states that were seen.

    Raises:
      UnfitLayer
    """
    num_layers = count_stateful_layers(config)
    num_seen = count_stateful_modules(states)
    if num_seen != num_layers:
        raise UnfitLayer(
            f"{num_layers} of its layers keep states, but {num_seen} of its modules "
            "keep them in a way that can be served"
        )


def check_windows(
    config: PreTrainedConfig,
    layers: tuple[LayerSpec, ...],
    among: slice = slice(None),
) -> None:
    """Refuse models whose sliding windows do not reach the attention function.

    Such layers would read more keys than in their training. The answers would become
    worse without an error.

    Args:
      config: the model's.
      layers: the calls of attention that were seen.
      among: the places of these layers among the model's.

    Raises:
      UnfitLayer
    """
    for layer in layers:
        if layer.window is not None and layer.window < 1:
            raise UnfitLayer(
                f"{layer.module_name} sees a window of {layer.window} tokens"
            )
    text_config = config.get_text_config(decoder=True)
    layer_types = (getattr(text_config, "layer_types", None) or ())[among]
    num_windows = sum(layer.window is not None for layer in layers)
    if layer_types and num_windows != layer_types.count("sliding_attention"):
        raise UnfitLayer(
            f"{layer_types.count('sliding_attention')} of its layers have a sliding "
            f"window, but {num_windows} pass it to attention"
        )


def check_sharing(config: PreTrainedConfig, layers: tuple[LayerSpec, ...]) -> None:
    """Refuse models whose layers read each other's keys in a way that was not seen.

    Raises:
      UnfitLayer
    """
    text_config = config.get_text_config(decoder=True)
    expected = getattr(text_config, "num_kv_shared_layers", None) or 0
    found = sum(layer.shares is not None for layer in layers)
    if expected and found != expected:
        raise UnfitLayer(
            f"{expected} of its layers read the keys and values of earlier ones, but "
            f"{found} pass them to attention"
        )
