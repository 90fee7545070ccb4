"""The parts of a plain Llama's decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...attention.probe import LayerSpec
from ...runtimes.description import (
    AttentionParts,
    DecoderParts,
    LayerParts,
    MlpParts,
    SublayerParts,
    make_empty,
)
from ...runtimes.native.packer import Weights
from .description import Llama3Scaling, PlainConfig
from .tensors import FINAL_NORM, PlainTensors, list_shapes, name_head, name_layer


class PartsBuilder:
    """Makes the parts of a decoder.

    Args:
      dtype: of the model.
      num_positions: those with rotary angles.

    Attributes:
      sources: the weights of its products, which have none themselves.
      names: of its products.
    """

    def __init__(
        self,
        described: PlainConfig,
        tensors: PlainTensors,
        dtype: torch.dtype,
        num_positions: int,
    ) -> None:
        self.sources: dict[nn.Linear, Weights] = {}
        self.names: dict[nn.Module, str] = {}
        self._described = described
        self._shapes = list_shapes(described)
        self._tensors = tensors
        self._dtype = dtype
        self._rotary = compute_rotary(described, num_positions)

    def build(self, layers: range, calls: tuple[LayerSpec, ...]) -> DecoderParts:
        """Make the parts of some layers, and of the head if the last layer is among them.

        Args:
          calls: of attention, one for each of the layers.
        """
        has_head = layers.stop == self._described.num_hidden_layers
        return DecoderParts(
            layers=tuple(
                self._build_layer(name_layer(i), call) for i, call in zip(layers, calls)
            ),
            final_norm=self._tensors.read_vector(FINAL_NORM) if has_head else None,
            head=self._multiply_head() if has_head else None,
            activation="silu",
            epsilon=self._described.rms_norm_eps,
            names=self.names,
        )

    def _build_layer(self, name: str, call: LayerSpec) -> LayerParts:
        cos, sin = self._rotary
        read = self._tensors.read_vector
        attention = SublayerParts(
            norm=read(f"{name}.input_layernorm"),
            body=AttentionParts(
                call=call,
                inputs=(
                    self._multiply(f"{name}.self_attn.q_proj"),
                    self._multiply(f"{name}.self_attn.k_proj"),
                    self._multiply(f"{name}.self_attn.v_proj"),
                ),
                cos=cos,
                sin=sin,
                output=self._multiply(f"{name}.self_attn.o_proj"),
            ),
        )
        network = SublayerParts(
            norm=read(f"{name}.post_attention_layernorm"),
            body=MlpParts(
                inputs=(
                    self._multiply(f"{name}.mlp.gate_proj"),
                    self._multiply(f"{name}.mlp.up_proj"),
                ),
                output=self._multiply(f"{name}.mlp.down_proj"),
            ),
        )
        return LayerParts(sublayers=(attention, network))

    def _multiply_head(self) -> nn.Linear:
        head = self._multiply(name_head(self._described))
        # Its weights may be the vectors of tokens.
        self.names[head] = "lm_head"
        return head

    def _multiply(self, name: str) -> nn.Linear:
        """Return a product without weights of its own; `sources` gets them."""
        num_outputs, num_inputs = self._shapes[name]
        product = nn.Linear(num_inputs, num_outputs, bias=False, device="meta")
        product.weight = make_empty((num_outputs, num_inputs), self._dtype)
        self.sources[product] = self._tensors.find_weights(name)
        self.names[product] = name
        return product


def list_calls(described: PlainConfig, layers: range) -> tuple[LayerSpec, ...]:
    """Return the calls of attention of some layers."""
    return tuple(
        LayerSpec(
            module_name=f"{name_layer(i)}.self_attn",
            num_heads=described.num_attention_heads,
            num_kv_heads=described.num_key_value_heads,
            key_dim=described.head_dim,
            value_dim=described.head_dim,
            is_causal=True,
            window=None,
            scaling=described.head_dim**-0.5,
        )
        for i in layers
    )


def compute_rotary(described: PlainConfig, num_positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, (num_positions, head_dim) float32 both."""
    exponents = torch.arange(0, described.head_dim, 2).float() / described.head_dim
    frequencies = 1.0 / described.rope_theta**exponents
    if described.rope_scaling is not None:
        frequencies = _slow_down(frequencies, described.rope_scaling)
    angles = torch.arange(num_positions).float()[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)  # (num_positions, head_dim)
    return angles.cos(), angles.sin()


def _slow_down(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide the frequencies of long waves by a factor, and of waves between by less.

    Source: _compute_llama3_parameters in transformers' modeling_rope_utils.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # Turns within the positions of the first training.
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
