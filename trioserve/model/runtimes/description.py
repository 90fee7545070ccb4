"""The description of a decoder, which every kind of kernels reads.

Each capability of a decoder is a field here, with its place in recognise/, which finds it, and
in native/ and fused/, which compute it. transformers' modules (modules/) need no description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...kernels.stored import StoredWeights
from ..attention.latents import LatentProjection
from ..attention.probe import LayerSpec
from .stored_weights import find_stored, find_stored_experts, release_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpParts:
    """A feed-forward network.

    Args:
      inputs: the products of the gate and of what it weighs; or one of both, whose
        outputs follow each other; or the one whose outputs become active, if there is no gate.
      gate_scale: factor of the gate before the activation.
    """

    inputs: tuple[nn.Linear, ...]
    has_gate: bool = True
    gate_scale: float = 1.0
    output: nn.Linear

    @property
    def inner_size(self) -> int:
        return self.output.in_features


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGate:
    """The activation of experts whose gates and numbers are clamped.

        (numbers + 1) * gates * sigmoid(slope * gates)

    Gates are at most `limit`, and numbers are between -limit and limit.
    """

    slope: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureParts:
    """A mixture of experts, each a feed-forward network.

    Args:
      router: (num_experts, hidden_size)
      experts: has gate_up_proj, (num_experts, 2 * intermediate_size, size), or up_proj,
        (num_experts, intermediate_size, size), if there are no gates; and down_proj,
        (num_experts, size, intermediate_size). size is the hidden size without `inputs`.
        Their biases are (num_experts, outputs), if they have some.
      inputs, output: the products before and behind the experts; empty and None if they
        read and write hidden states.
      router_bias: (num_experts,), of the router's scores; None if there is none
      clamp: the activation of gates; None if it is the decoder's.
      num_chosen: experts for each token.
      renormalizes: the weights of a token's experts add up to 1.
      num_groups, num_chosen_groups: experts are chosen among those of the best groups, which
        follow each other.
      num_ranked: the best experts of a group that decide its place.
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
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_ranked: int = 1
    has_sigmoid: bool = False
    choice_bias: Tensor | None = None
    scale: float = 1.0
    expert_scales: Tensor | None = None
    router_bias: Tensor | None = None
    clamp: ClampedGate | None = None
    shared: MlpParts | None = None
    shared_gate: nn.Linear | None = None
    inputs: tuple[nn.Linear, ...] = ()
    output: nn.Linear | None = None

    @property
    def first_name(self) -> str:
        """The name of the experts' first weight."""
        return "gate_up_proj" if self.has_gate else "up_proj"

    @property
    def has_gate(self) -> bool:
        return hasattr(self.experts, "gate_up_proj")

    @property
    def is_transposed(self) -> bool:
        """True if the inputs come before the outputs in the weights of experts."""
        return bool(getattr(self.experts, "is_transposed", False))

    @property
    def is_interleaved(self) -> bool:
        """True if each gate's outputs come beside what it weighs."""
        return not getattr(self.experts, "is_concatenated", True)

    @property
    def has_biases(self) -> bool:
        return bool(getattr(self.experts, "has_bias", False))

    @property
    def intermediate_size(self) -> int:
        return int(self.experts.down_proj.shape[1 if self.is_transposed else 2])

    def order_outputs(self, name: str) -> Tensor | None:
        """Return the outputs of a weight, with gates before what they weigh.

        Returns:
          (num_outputs,) int64, on the CPU; None if they are in this order
        """
        if not self.is_interleaved or name != self.first_name:
            return None
        return torch.arange(2 * self.intermediate_size).view(-1, 2).T.flatten()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """Attention over keys and values. All but the products are float32.

    Args:
      call: its call of attention.
      inputs: the products of queries, keys, values, and gates if it has them; of queries
        alone, if it reads the keys and values of another call.
      order: as in DeltaParts.
      inputs_scale: (num_outputs,), factors of the outputs of `inputs`, which then have no
        biases; None if there are none
      has_gate: sigmoids of gates weigh its outputs.
      keys_are_values: there is no product of values; they are keys before their norm and
        their rotation, and have a norm of their own.
      cos, sin: (max_model_len, rotary_dim), of each position
    """

    call: LayerSpec
    inputs: tuple[nn.Linear, ...]
    order: Tensor | None = None
    inputs_scale: Tensor | None = None
    has_gate: bool = False
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    value_norm: Tensor | None = None
    keys_are_values: bool = False
    cos: Tensor
    sin: Tensor
    output: nn.Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentParts:
    """Attention whose heads share one latent a token. All but the products are float32.

    Args:
      call: its call of attention: keys are a latent and a shared key.
      inputs: the products of queries, or of the numbers that `query` reads, and of keys.
      order: as in DeltaParts. The numbers of a rotated pair are half of a head apart.
      query: the product of queries; None if it is among the inputs.
      query_order: of its outputs, as `order`.
      query_norm: of the numbers that `query` reads; None without it
      latent_norm: (rank,)
      epsilon: of both norms.
      projection: turns latents into keys and values, which nobody computes.
      cos, sin: (max_model_len, rotary_dim), of each position
    """

    call: LayerSpec
    inputs: tuple[nn.Linear, ...]
    order: Tensor | None
    query: nn.Linear | None
    query_order: Tensor | None
    query_norm: Tensor | None
    latent_norm: Tensor
    epsilon: float
    projection: LatentProjection
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

    Source: Yang et al. 2025 (Gated Delta Networks); Kimi Team 2025 (Kimi Linear).

    Args:
      inputs: the products of queries, keys and values, which the convolution reads, of
        gates, and of a rate and a decay for each head of values. If products widen them: of
        queries, keys and values, of rates, of narrow decays and of narrow gates.
      widen_decays, widen_gates: the products of narrow decays and of narrow gates; there is a
        decay for each row of the state then, and sigmoids of gates weigh the output.
      order: (num_outputs,) int64, the places of these numbers among the outputs of
        `inputs`, which follow each other; None if they are in order.
      num_key_heads, num_value_heads: a head of keys serves as many heads of values as
        follow each other.
      decay: (num_value_heads,), negative
      decay_bias: (num_value_heads,), or (num_value_heads * key_dim,)
      norm: (value_dim,), the weight of the norm before the gate
    """

    inputs: tuple[nn.Linear, ...]
    widen_decays: nn.Linear | None = None
    widen_gates: nn.Linear | None = None
    order: Tensor | None = None
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
      inputs_scale: as in AttentionParts, in the order of the kernels.
      num_groups: heads of keys and queries.
      decay, decay_bias, skip: (num_heads,); the first is negative
      step_limits: the least and the largest time step.
      norm: (num_heads * value_dim,), the weight of the norm behind the gate; None if there is none
      has_gate_behind: the gate is behind the norm.
      num_norm_groups: parts of a token that are normalised by themselves.
    """

    inputs: tuple[nn.Linear, ...]
    order: Tensor
    inputs_scale: Tensor | None = None
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
    has_gate_behind: bool = False
    output: nn.Linear


StateParts = DeltaParts | ShortConvParts | Mamba2Parts
MixerParts = AttentionParts | LatentParts | StateParts


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideParts:
    """A feed-forward network and a mixture of experts beside it, as Gemma 4 has them.

    Both read the same hidden states, each behind a norm of its own. Their outputs are
    normalized, too, and added up.

    Args:
      router_norm: (hidden_size,), the weight of the norm before the router.
      input_norm, output_norm: (hidden_size,), of the norms before and behind the experts.
      network_norm: (hidden_size,), of the norm behind the network.
    """

    network: MlpParts
    mixture: MixtureParts
    router_norm: Tensor
    input_norm: Tensor
    output_norm: Tensor
    network_norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupParts:
    """The vector that a layer looks up for each token, and adds to its output.

    Args:
      gate: of the hidden states, whose activation weighs the vector.
      output: the product of the weighed vector.
    """

    gate: nn.Linear
    output: nn.Linear


Body = MixerParts | MlpParts | MixtureParts | BesideParts | LookupParts


@dataclass(frozen=True, slots=True, kw_only=True)
class SublayerParts:
    """A part of a layer that adds to the hidden states. All norms are float32.

        hidden = hidden + scale * post_norm(body(norm(hidden)))

    Args:
      norm: (hidden_size,), a weight; None if the body reads what the sublayer before it reads.
        LookupParts read the hidden states themselves.
      post_norm: (hidden_size,), a weight; None if there is no norm
    """

    norm: Tensor | None
    body: Body
    post_norm: Tensor | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One layer.

    Args:
      sublayers: in their order; most layers have attention and a feed-forward network.
      output_scale: factor of its output, with the residual.
    """

    sublayers: tuple[SublayerParts, ...]
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
      look_up: finds the vectors of tokens for each layer that has LookupParts, from
        token ids, (1, num_tokens), and the vectors that the first layer reads,
        (num_tokens, hidden_size); returns (num_tokens, num_layers, size) float32
      plane_rotary: turns positions on three axes into rotary angles; None if the model
        places nothing in a plane.
      names: of the products, as transformers names its modules.
    """

    layers: tuple[LayerParts, ...]
    embedding_scale: float = 1.0
    final_norm: Tensor | None
    head: nn.Linear | None
    activation: str
    epsilon: float
    logit_softcap: float | None = None
    look_up: Callable[[Tensor, Tensor], Tensor] | None = None
    plane_rotary: nn.Module | None = None
    names: Mapping[nn.Module, str]

    @property
    def hidden_size(self) -> int:
        norm = self.layers[0].sublayers[0].norm
        assert norm is not None, "the first sublayer has a norm"
        return len(norm)

    @property
    def bodies(self) -> Iterator[Body]:
        """The bodies of all sublayers."""
        for layer in self.layers:
            for sublayer in layer.sublayers:
                yield sublayer.body

    @property
    def dtype(self) -> torch.dtype:
        """The type of the products' weights."""
        return next(
            product.weight.dtype
            for body in self.bodies
            for product in list_products(body)
        )


def list_products(body: Body) -> list[nn.Linear]:
    """Return the products of a sublayer, without the weights of experts."""
    match body:
        case LookupParts():
            return [body.gate, body.output]
        case BesideParts():
            return list_products(body.network)
        case MixtureParts():
            shared = [] if body.shared is None else list_products(body.shared)
            others = body.shared_gate, body.output
            return [*shared, *body.inputs, *(each for each in others if each)]
        case DeltaParts():
            others = body.widen_decays, body.widen_gates
            return [*body.inputs, *(each for each in others if each), body.output]
        case LatentParts():
            query = [] if body.query is None else [body.query]
            return [*body.inputs, *query, body.output]
        case _:
            return [*body.inputs, body.output]


def find_mixture(body: Body) -> MixtureParts | None:
    """Return the experts of a sublayer; None if it has none."""
    if isinstance(body, BesideParts):
        return body.mixture
    return body if isinstance(body, MixtureParts) else None


def list_stored(parts: DecoderParts) -> Iterator[tuple[Tensor, StoredWeights]]:
    """List the weights that a checkpoint has in fewer bits, beside those of the modules."""
    products = [each for body in parts.bodies for each in list_products(body)]
    for product in [*products, *([parts.head] if parts.head else [])]:
        if (stored := find_stored(product)) is not None:
            yield product.weight, stored
    for mixture in filter(None, map(find_mixture, parts.bodies)):
        for name, stored in find_stored_experts(mixture.experts).items():
            yield getattr(mixture.experts, name), stored


def release(modules: Sequence[nn.Module], name: str = "weight") -> None:
    """Take a weight from modules that are packed."""
    for module in modules:
        weight: Tensor = getattr(module, name)
        setattr(module, name, make_empty(weight.shape, weight.dtype))
        release_stored(module, name)


def make_empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
) -> nn.Parameter:
    """Return a weight without numbers: some models read its type or its shape."""
    empty = torch.empty((), dtype=dtype, device=device)
    return nn.Parameter(empty.expand(shape), requires_grad=False)
