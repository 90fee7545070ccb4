"""The description of a decoder, which every kind of kernels reads.

Each capability of a decoder is a field here, with its place in recognise/, which finds it, and
in native/ and fused/, which compute it. transformers' modules (modules/) need no description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.probe import LayerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpParts:
    """A gated feed-forward network.

    Args:
      gate_up: the products of the gate and of what it weighs; or one of both, whose
        outputs follow each other.
    """

    gate_up: tuple[nn.Linear, ...]
    down: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureParts:
    """A mixture of experts, each a gated feed-forward network.

    Args:
      router: (num_experts, hidden_size)
      experts: has gate_up_proj, (num_experts, 2 * intermediate_size, hidden_size), and
        down_proj, (num_experts, hidden_size, intermediate_size).
      num_chosen: experts for each token.
      renormalizes: the weights of a token's experts add up to 1.
      shared: an expert for all tokens; None if there is none.
      shared_gate: (1, hidden_size), whose sigmoid weighs it; None if nothing does
    """

    router: Tensor
    experts: Any
    num_chosen: int
    renormalizes: bool
    shared: MlpParts | None
    shared_gate: nn.Linear | None

    @property
    def intermediate_size(self) -> int:
        return int(self.experts.down_proj.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """Attention over keys and values. All but the products are float32.

    Args:
      call: its call of attention.
      inputs: the products of queries, keys and values, whose outputs follow each other.
      keys_are_values: there is no product of values; they are keys before their norm and
        their rotation, and have a norm of their own.
      cos, sin: (max_model_len, rotary_dim), of each position
    """

    call: LayerSpec
    inputs: tuple[nn.Linear, ...]
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    value_norm: Tensor | None = None
    keys_are_values: bool = False
    cos: Tensor
    sin: Tensor
    output: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One layer. All but the products are float32.

    Args:
      mixer: mixes the tokens of a sequence.
      mlp: its feed-forward network, or its experts.
      post_mixer_norm, post_mlp_norm: weights of norms before the residual is added.
      output_scale: factor of its output, with the residual.
    """

    input_norm: Tensor
    mixer: AttentionParts
    post_mixer_norm: Tensor | None = None
    mlp_norm: Tensor
    mlp: MlpParts | MixtureParts
    post_mlp_norm: Tensor | None = None
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """The layers of a decoder, its last norm and its head.

    Args:
      embedding_scale: factor of the vectors of tokens before the first layer.
      final_norm, head: None if they belong to another stage of a pipeline.
      activation: a name in formulas.ACTIVATION_CODES.
      epsilon: the norms add it to the mean square.
      logit_softcap: logits become softcap * tanh(logit / softcap); None leaves them.
      plane_rotary: turns positions on three axes into rotary angles; None if the model
        places nothing in a plane.
    """

    layers: tuple[LayerParts, ...]
    embedding_scale: float = 1.0
    final_norm: Tensor | None
    head: nn.Linear | None
    activation: str
    epsilon: float
    logit_softcap: float | None = None
    plane_rotary: nn.Module | None = None

    @property
    def hidden_size(self) -> int:
        return len(self.layers[0].input_norm)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the products' weights."""
        return self.layers[0].mixer.output.weight.dtype


def release(modules: Sequence[nn.Module], name: str = "weight") -> None:
    """Take a weight from modules that are packed."""
    for module in modules:
        weight: Tensor = getattr(module, name)
        setattr(module, name, make_empty(weight.shape, weight.dtype))


def make_empty(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """Return a weight without numbers: some models read its type or its shape."""
    return nn.Parameter(torch.empty((), dtype=dtype).expand(shape), requires_grad=False)
