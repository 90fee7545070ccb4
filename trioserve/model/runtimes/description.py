"""The description of a decoder, which every kind of kernels reads.

Each capability of a decoder is a field here, with its place in recognise/, which finds it, and
in native/ and fused/, which compute it. transformers' modules (modules/) need no description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
      has_sigmoid: weights are sigmoids of the router's scores, in place of their softmax.
      choice_bias: (num_experts,), added to the weights to choose experts; None if nothing is
      scale: factor of the weights.
      expert_scales: (num_experts,), factors of the weights of each expert; None if there
        are none
      shared: an expert for all tokens; None if there is none.
      shared_gate: (1, hidden_size), whose sigmoid weighs it; None if nothing does
    """

    router: Tensor
    experts: Any
    num_chosen: int
    renormalizes: bool
    has_sigmoid: bool = False
    choice_bias: Tensor | None = None
    scale: float = 1.0
    expert_scales: Tensor | None = None
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
      inputs: the products of queries, keys, values, and gates if it has them; of queries
        alone, if it reads the keys and values of another call.
      order: as in DeltaParts.
      has_gate: sigmoids of gates weigh its outputs.
      keys_are_values: there is no product of values; they are keys before their norm and
        their rotation, and have a norm of their own.
      cos, sin: (max_model_len, rotary_dim), of each position
    """

    call: LayerSpec
    inputs: tuple[nn.Linear, ...]
    order: Tensor | None = None
    has_gate: bool = False
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    value_norm: Tensor | None = None
    keys_are_values: bool = False
    cos: Tensor
    sin: Tensor
    output: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionParts:
    """A causal convolution of each channel with its last inputs. All is float32.

    Args:
      taps: (num_channels, num_taps), that of the newest input last
      bias: (num_channels,)
    """

    taps: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaParts:
    """The gated delta rule. All but the products are float32.

    Source: Yang et al. 2025 (Gated Delta Networks).

    Args:
      inputs: the products of queries, keys and values, which the convolution reads, of
        gates, and of a rate and a decay for each head of values.
      order: (num_outputs,) int64, the places of these numbers among the outputs of
        `inputs`, which follow each other; None if they are in order.
      num_key_heads, num_value_heads: a head of keys serves as many heads of values as
        follow each other.
      decay: (num_value_heads,), negative
      decay_bias: (num_value_heads,)
      norm: (value_dim,), the weight of the norm before the gate
    """

    inputs: tuple[nn.Linear, ...]
    order: Tensor | None
    convolution: ConvolutionParts
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    decay: Tensor
    decay_bias: Tensor
    norm: Tensor
    output: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvParts:
    """A convolution between two gates, as LFM2 has it.

    Args:
      inputs: the product of gates before the convolution, of gates behind it, and of
        values.
    """

    inputs: tuple[nn.Linear, ...]
    order: None = None
    convolution: ConvolutionParts
    output: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Parts:
    """A recurrence of Mamba-2. All but the products are float32.

    Source: Dao and Gu 2024 (Mamba-2).

    Args:
      inputs: the product of queries, keys and values, which the convolution reads, of
        gates, and of a time step for each head.
      order: as in DeltaParts.
      num_groups: heads of keys and queries.
      decay, decay_bias, skip: (num_heads,); the first is negative
      step_limits: the least and the largest time step.
      norm: (num_heads * value_dim,), the weight of the norm behind the gate; None if there is none
      num_norm_groups: parts of a token that are normalised by themselves.
    """

    inputs: tuple[nn.Linear, ...]
    order: Tensor
    convolution: ConvolutionParts
    num_groups: int
    num_heads: int
    key_dim: int
    value_dim: int
    decay: Tensor
    decay_bias: Tensor
    skip: Tensor
    step_limits: tuple[float, float]
    norm: Tensor | None
    num_norm_groups: int
    output: nn.Linear


StateParts = DeltaParts | ShortConvParts | Mamba2Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideParts:
    """A mixture of experts beside a feed-forward network, as Gemma 4 has it.

    Both read the same hidden states, each behind a norm of its own. Their outputs are
    normalized, too, and added up.

    Args:
      router_norm: (hidden_size,), the weight of the norm before the router.
      input_norm, output_norm: (hidden_size,), of the norms before and behind the experts.
      network_norm: (hidden_size,), of the norm behind the network.
    """

    mixture: MixtureParts
    router_norm: Tensor
    input_norm: Tensor
    output_norm: Tensor
    network_norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupParts:
    """The vector that a layer looks up for each token, and adds to its output.

    Args:
      gate: of the output, whose activation weighs the vector.
      projection: of the weighed vector; its output is normalized.
      norm: (hidden_size,) float32
    """

    gate: nn.Linear
    projection: nn.Linear
    norm: Tensor


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
    mixer: AttentionParts | StateParts
    post_mixer_norm: Tensor | None = None
    mlp_norm: Tensor
    mlp: MlpParts | MixtureParts
    post_mlp_norm: Tensor | None = None
    beside: BesideParts | None = None
    lookup: LookupParts | None = None
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """The layers of a decoder, its last norm and its head.

    Args:
      embedding_scale: factor of the vectors of tokens before the first layer.
      final_norm, head: None if they belong to another stage of a pipeline.
      activation: a name in formulas.ACTIVATION_CODES.
      epsilon: the norms add it to the mean square.
      residual_scale: factor of what a layer adds to the hidden states.
      logit_softcap: logits become softcap * tanh(logit / softcap); None leaves them.
      look_up: finds the vectors of tokens for each layer that has LookupParts, from
        token ids, (1, num_tokens), and the vectors that the first layer reads,
        (num_tokens, hidden_size); returns (num_tokens, num_layers, size) float32
      plane_rotary: turns positions on three axes into rotary angles; None if the model
        places nothing in a plane.
    """

    layers: tuple[LayerParts, ...]
    embedding_scale: float = 1.0
    final_norm: Tensor | None
    head: nn.Linear | None
    activation: str
    epsilon: float
    residual_scale: float = 1.0
    logit_softcap: float | None = None
    look_up: Callable[[Tensor, Tensor], Tensor] | None = None
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
