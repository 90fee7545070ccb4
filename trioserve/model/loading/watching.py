"""The calls of attention and the states of a model, found by watching one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..adapters.products import recording_products
from ..attention.bridge import AttentionContext
from ..attention.masks import probe_decoder
from ..attention.probe import NUM_PROBE_TOKENS, LayerSpec
from ..states.modules import StatefulModules
from ..states.spec import StateSpec
from .files.architecture import (
    check_causality,
    check_positions,
    check_sharing,
    check_states,
    check_windows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedModel:
    """What the modules of a model do in a forward pass; the fields are LoadedModel's."""

    attention: AttentionContext
    layers: tuple[LayerSpec, ...]
    states: tuple[StateSpec, ...]
    stateful: StatefulModules
    products: dict[str, tuple[int, int]]


def watch_model(model: PreTrainedModel) -> WatchedModel:
    """Connect a model to paged attention and to states, and run it once.

    Args:
      model: it may have no weights.

    Raises:
      UnfitLayer: it cannot be served; the message says why.
    """
    attention, stateful = AttentionContext(model), StatefulModules(model)
    with stateful.record() as recorder, recording_products(
        model, NUM_PROBE_TOKENS
    ) as products:
        layers = probe_decoder(model, attention, has_others=stateful.has_any)
    if layers:
        check_positions(model)
    check_causality(layers)
    check_windows(model.config, layers)
    check_sharing(model.config, layers)
    check_states(model.config, recorder.states)
    return WatchedModel(
        attention=attention,
        layers=layers,
        states=recorder.states,
        stateful=stateful,
        products=products,
    )
