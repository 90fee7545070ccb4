"""The vectors that layers look up for each token, found among the modules of a decoder.

Source: per-layer embeddings of Gemma 3n and 4, in transformers/models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..choice import NotRecognised
from ..description import LookupParts, SublayerParts
from .formulas import find_norm
from .products import check_linear, check_shape, get_part


def find_lookup(layer: Any, hidden_size: int) -> SublayerParts | None:
    """Find the sublayer that adds a vector of its own for each token.

    Returns:
      None if a layer has none

    Raises:
      NotRecognised
    """
    gate = getattr(layer, "per_layer_input_gate", None)
    if gate is None:
        return None
    if hasattr(layer, "altup"):
        raise NotRecognised("its layers predict and correct several hidden states")
    projection = get_part(layer, "per_layer_projection")
    norm = get_part(layer, "post_per_layer_input_norm")
    return SublayerParts(
        norm=None,
        body=LookupParts(
            gate=check_linear(gate, "per_layer_input_gate"),
            output=check_linear(projection, "per_layer_projection"),
        ),
        post_norm=find_norm(norm, hidden_size),
    )


def list_lookup_activations(layer: Any) -> list[Callable[[Tensor], Tensor]]:
    """Return the activation of the gate of a layer's lookup, if it has one.

    Raises:
      NotRecognised
    """
    if not hasattr(layer, "per_layer_input_gate"):
        return []
    return [get_part(layer, "act_fn")]


def check_lookup(lookup: LookupParts, hidden_size: int, dtype: torch.dtype) -> None:
    """Refuse products of unexpected shapes, because the kernels trust their pointers.

    Raises:
      NotRecognised
    """
    size = lookup.gate.out_features
    if size % 2 or hidden_size % 2:
        raise NotRecognised("its layers look up vectors of an odd size")
    check_shape([lookup.gate], hidden_size, size, dtype, has_bias=False)
    check_shape([lookup.output], size, hidden_size, dtype, has_bias=False)


def find_token_lookup(
    body: Any, layers: Sequence[nn.Module]
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function that finds the vectors of tokens for all layers.

    Returns:
      as in DecoderParts; None if no layer looks up tokens

    Raises:
      NotRecognised: some layers do, and others do not.
    """
    having = [hasattr(layer, "per_layer_input_gate") for layer in layers]
    if not any(having):
        return None
    look_up: Any = get_part(body, "get_per_layer_inputs")
    project: Any = get_part(body, "project_per_layer_inputs")
    if not all(having):
        raise NotRecognised("some of its layers look up tokens, and others do not")

    def find(token_ids: Tensor, vectors: Tensor) -> Tensor:
        found: Tensor = project(vectors[None], look_up(token_ids))
        return found[0].float().contiguous()  # (num_tokens, num_layers, size)

    return find
