"""The parts of layers that mix the tokens of a sequence, with their caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ....kernels.triton.paged import PagedLayer
from ....kernels.triton.states import Convolution, Recurrence
from ....kernels.triton.steps import Angles, RotaryLayer, weigh_gates
from ....kernels.triton.tiles import Tiles
from ...attention.kv_cache import make_zeros
from ..description import (
    AttentionParts,
    DeltaParts,
    Mamba2Parts,
    ShortConvParts,
    StateParts,
)
from .products import Product

# Runs a product, with the changes of adapters.
Multiply = Callable[[Product, Tensor], Tensor]


class Mixer(Protocol):
    """Mixes the tokens of each sequence, between two products of a layer.

    Attributes:
      states: of all slots, and their copies; none if it reads keys and values.
    """

    @property
    def states(self) -> tuple[Tensor, ...]: ...

    def run(
        self, inputs: Tensor, tiles: Tiles, angles: Angles | None, multiply: Multiply
    ) -> Tensor:
        """Mix the tokens of a step.

        Args:
          inputs: (num_tokens, outputs of the first product)
          angles: of the tokens; None if they are at their places.

        Returns:
          (num_tokens, inputs of the second product)
        """


class Attention:
    """Attention over keys and values, perhaps with gates behind it."""

    states: tuple[Tensor, ...] = ()

    def __init__(
        self, parts: AttentionParts, paged: PagedLayer, epsilon: float
    ) -> None:
        self._parts = parts
        self._paged = paged
        shares = parts.call.shares is not None
        self._rotary = RotaryLayer(
            paged,
            rotary_dim=parts.cos.shape[1],
            query_norm=parts.query_norm,
            # Nobody reads it where another layer has written the keys.
            key_norm=parts.query_norm if shares else parts.key_norm,
            epsilon=epsilon,
            value_norm=None if shares else parts.value_norm,
            keys_are_values=parts.keys_are_values,
        )

    def run(
        self, inputs: Tensor, tiles: Tiles, angles: Angles | None, multiply: Multiply
    ) -> Tensor:
        parts = self._parts
        if angles is None:
            angles = Angles(cos=parts.cos, sin=parts.sin, rows=tiles.positions)
        query = self._rotary.run(inputs, tiles, angles)
        attended = self._paged.attend(query, tiles).flatten(1)
        if not parts.has_gate:
            return attended
        return weigh_gates(inputs[:, -attended.shape[1] :], attended, "sigmoid")


@dataclass(frozen=True)
class ShortConvolution:
    """A Mixer: a convolution between two gates."""

    convolution: Convolution

    @property
    def states(self) -> tuple[Tensor, ...]:
        return (self.convolution.kept,)

    def run(
        self, inputs: Tensor, tiles: Tiles, angles: Angles | None, multiply: Multiply
    ) -> Tensor:
        return self.convolution.run(inputs, tiles, is_gated=True)


@dataclass(frozen=True)
class RecurrentHeads:
    """A Mixer: a convolution, the recurrences of heads behind it, and gates.

    Args:
      widening: the products of narrow decays and of narrow gates, which are the last inputs;
        none if the inputs are not narrow.
    """

    convolution: Convolution
    recurrence: Recurrence
    widening: tuple[Product, ...]

    @property
    def states(self) -> tuple[Tensor, ...]:
        return self.convolution.kept, self.recurrence.states

    def run(
        self, inputs: Tensor, tiles: Tiles, angles: Angles | None, multiply: Multiply
    ) -> Tensor:
        mixed = self.convolution.run(inputs, tiles)
        if not self.widening:
            return self.recurrence.run(mixed, inputs, tiles)
        decays, gates = self.widening
        sizes = [each.weight.shape[1] for each in self.widening]
        low, lower = inputs[:, -sum(sizes) :].split(sizes, dim=1)
        wide = multiply(decays, low.contiguous()), multiply(gates, lower.contiguous())
        return self.recurrence.run(mixed, inputs, tiles, wide)


def make_state_mixer(
    parts: StateParts,
    between: tuple[Product, ...],
    num_places: int,
    dtype: torch.dtype,
    epsilon: float,
) -> Mixer:
    """Make a mixer, and allocate its states.

    Args:
      between: as in MixerWeights.
      num_places: slots and copies.
      dtype: the model's, which inputs of convolutions keep. Recurrent states are float32.
    """
    taps, bias = parts.convolution.taps.T.contiguous(), parts.convolution.bias
    num_taps, num_channels = taps.shape
    shape = num_places, num_taps - 1, num_channels
    convolution = Convolution(taps, bias, make_zeros(shape, dtype, taps.device))
    if isinstance(parts, ShortConvParts):
        return ShortConvolution(convolution)
    recurrence = _make_recurrence(parts, num_places, epsilon)
    return RecurrentHeads(convolution, recurrence, between)


def _make_recurrence(
    parts: DeltaParts | Mamba2Parts, num_places: int, epsilon: float
) -> Recurrence:
    num_heads = len(parts.decay)
    shape = num_places, num_heads, parts.value_dim, parts.key_dim
    states = make_zeros(shape, torch.float32, parts.decay.device)
    if isinstance(parts, DeltaParts):
        return Recurrence(
            states=states,
            num_key_heads=parts.num_key_heads,
            decay=parts.decay,
            decay_bias=parts.decay_bias,
            norm=parts.norm,
            num_norm_groups=num_heads,
            has_gate_behind=True,
            activation="silu" if parts.widen_gates is None else "sigmoid",
            epsilon=epsilon,
        )
    return Recurrence(
        states=states,
        num_key_heads=parts.num_groups,
        decay=parts.decay,
        decay_bias=parts.decay_bias,
        skip=parts.skip,
        step_limits=parts.step_limits,
        norm=parts.norm,
        num_norm_groups=parts.num_norm_groups,
        has_gate_behind=parts.has_gate_behind,
        epsilon=epsilon,
    )
