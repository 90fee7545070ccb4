"""Layers with states compute what transformers computes, however a text is cut."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
import math
from typing import Any

from hypothesis import given, strategies as st
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_recurrent_gated_delta_rule,
)

from trioserve.kernels.structs import StateSpec

from .chance import by_chance, make_numbers

EPSILON = 1e-6
DELTA, MAMBA2, SHORT_CONV = range(3)


@dataclass
class Sizes:
    """The sizes of a layer."""

    kind: int
    key_heads: int
    group: int
    key_dim: int
    value_dim: int
    num_taps: int

    @property
    def value_heads(self) -> int:
        return self.key_heads * self.group

    @property
    def num_values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def num_keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def num_channels(self) -> int:
        if self.kind == SHORT_CONV:
            return self.num_values
        return 2 * self.num_keys + self.num_values

    @property
    def parts(self) -> list[int]:
        """The sizes of what a token reads."""
        if self.kind == SHORT_CONV:
            return [self.num_values] * 3
        num_others = 2 if self.kind == DELTA else 1
        return [
            *(self.num_channels, self.num_values),
            *([self.value_heads] * num_others),
        ]


kinds = st.builds(
    Sizes,
    kind=st.sampled_from([DELTA, MAMBA2, SHORT_CONV]),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    key_dim=st.integers(1, 20),
    value_dim=st.integers(1, 70),
    num_taps=st.integers(2, 5),
)


class Layer:
    """A layer with random numbers."""

    def __init__(self, sizes: Sizes, seed: int, *, has_bias: bool) -> None:
        self.sizes = sizes
        heads = sizes.value_heads
        self.taps = make_numbers(seed, sizes.num_taps, sizes.num_channels)
        self.bias = make_numbers(seed + 1, sizes.num_channels) if has_bias else None
        self.decay = -make_numbers(seed + 2, heads).exp()
        self.decay_bias = make_numbers(seed + 3, heads)
        self.skip = make_numbers(seed + 4, heads)
        num_weights = sizes.value_dim if sizes.kind == DELTA else sizes.num_values
        self.norm = make_numbers(seed + 5, num_weights)
        # A decoder of Falcon-H1 has no norm.
        self.has_norm = sizes.kind == DELTA or has_bias

    def describe(self) -> StateSpec:
        sizes = self.sizes
        return StateSpec(
            kind=sizes.kind,
            taps=self.taps.data_ptr(),
            tap_bias=None if self.bias is None else self.bias.data_ptr(),
            decay=self.decay.data_ptr(),
            decay_bias=self.decay_bias.data_ptr(),
            skip=self.skip.data_ptr(),
            norm=self.norm.data_ptr() if self.has_norm else None,
            num_channels=sizes.num_channels,
            num_taps=sizes.num_taps,
            num_key_heads=sizes.key_heads,
            num_value_heads=sizes.value_heads,
            key_dim=sizes.key_dim,
            value_dim=sizes.value_dim,
            num_norm_groups=sizes.key_heads,
            min_step=0.1,
            max_step=2.0,
        )

    def compute(self, x: Tensor) -> Tensor:
        """Compute the output for the tokens of one text, (num_tokens, num_values)."""
        parts = x.split(self.sizes.parts, dim=-1)
        if self.sizes.kind == SHORT_CONV:
            before, behind, values = parts
            return behind * self._convolve(before * values)
        return self._mix(functional.silu(self._convolve(parts[0])), *parts[1:])

    def _convolve(self, x: Tensor) -> Tensor:
        padded = functional.pad(x.T, (self.sizes.num_taps - 1, 0))
        weight = self.taps.T[:, None]
        return functional.conv1d(padded, weight, self.bias, groups=len(weight)).T

    def _mix(self, x: Tensor, gates: Tensor, *others: Tensor) -> Tensor:
        sizes = self.sizes
        keys = sizes.num_keys
        queries, keys, values = x.split([keys, keys, sizes.num_values], dim=-1)
        queries, keys = (
            each.unflatten(1, (-1, sizes.key_dim)) for each in (queries, keys)
        )
        values = values.unflatten(1, (-1, sizes.value_dim))
        steps = functional.softplus(others[-1] + self.decay_bias)
        if sizes.kind == DELTA:
            mixed, _ = torch_recurrent_gated_delta_rule(
                *(queries[None], keys[None], values[None]),
                g=(steps * self.decay)[None],
                beta=others[0].sigmoid()[None],
                initial_state=None,
                output_final_state=False,
                use_qk_l2norm_in_kernel=True,
            )
            normed = functional.rms_norm(
                mixed[0], (sizes.value_dim,), self.norm, EPSILON
            )
            return normed.flatten(1) * functional.silu(gates)
        mixed = self._scan(queries, keys, values, steps.clamp(0.1, 2.0))
        gated = mixed.flatten(1) * functional.silu(gates)
        if not self.has_norm:
            return gated
        groups = gated.unflatten(1, (sizes.key_heads, -1))
        normed = functional.rms_norm(groups, groups.shape[-1:], None, EPSILON)
        return normed.flatten(1) * self.norm

    def _scan(
        self, queries: Tensor, keys: Tensor, values: Tensor, steps: Tensor
    ) -> Tensor:
        """Compute the recurrence of Mamba-2 in float64."""
        queries, keys, values, steps = (
            each.double() for each in (queries, keys, values, steps)
        )
        queries, keys = (
            each.repeat_interleave(self.sizes.group, dim=1) for each in (queries, keys)
        )
        state = torch.zeros(*keys.shape[1:], self.sizes.value_dim).double()
        outputs = []
        for query, key, value, step in zip(queries, keys, values, steps):
            state = (step * self.decay).exp()[:, None, None] * state
            state = state + torch.einsum("hk,hv,h->hkv", key, value, step)
            skipped = self.skip[:, None] * value
            outputs.append(torch.einsum("hkv,hk->hv", state, query) + skipped)
        return torch.stack(outputs).float()


@dataclass
class Row:
    """Some tokens of a text, [begin, end)."""

    slot: int
    begin: int
    end: int
    is_held: bool = False


class Runner:
    """A layer with the states of two slots, which held other texts before."""

    def __init__(self, kernels: ctypes.CDLL, layer: Layer, num_threads: int) -> None:
        self._kernels = kernels
        self._layer = layer
        self._num_threads = num_threads
        kernels.test_count_state.restype = c_int64
        self._spec = layer.describe()
        size = kernels.test_count_state(ctypes.byref(self._spec))
        self.states = torch.full((2, size), math.nan)

    def run(self, x: Tensor, rows: list[Row]) -> list[Tensor]:
        """Run one step; returns the outputs of each row.

        Args:
          x: (2, num_tokens, numbers of a token), the texts of the slots
        """
        table, tokens = [], []
        for row in rows:
            place = sum(map(len, tokens))
            tokens.append(x[row.slot, row.begin : row.end])
            table.append(
                (
                    *(place, row.end - row.begin, row.slot, row.begin == 0),
                    row.end - row.begin - row.is_held,
                )
            )
        flat = torch.cat(tokens).clone()
        size = self._layer.sizes.num_values
        out = torch.full((len(flat), size + 1), math.nan)
        places = torch.tensor(table, dtype=torch.int32)
        self._kernels.test_mix_states(
            *(ctypes.byref(self._spec), self._num_threads),
            *(c_void_p(places.data_ptr()), len(rows), len(flat), c_float(EPSILON)),
            *(c_void_p(self.states.data_ptr()), c_void_p(flat.data_ptr())),
            *(flat.shape[1], c_void_p(out.data_ptr()), size + 1),
        )
        return list(out[:, :size].split([len(each) for each in tokens]))


def make(sizes: Sizes, seed: int, num_tokens: int) -> tuple[Layer, Tensor]:
    layer = Layer(sizes, seed, has_bias=seed % 2 == 1)
    return layer, make_numbers(seed + 9, 2, num_tokens, sum(sizes.parts))


@by_chance
@given(
    sizes=kinds,
    num_tokens=st.integers(1, 40),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_layer_with_a_state_computes_its_formula(
    kernels: ctypes.CDLL, sizes: Sizes, num_tokens: int, num_threads: int, seed: int
) -> None:
    layer, x = make(sizes, seed, num_tokens)
    runner = Runner(kernels, layer, num_threads)
    outputs = runner.run(x, [Row(1, 0, num_tokens), Row(0, 0, num_tokens)])
    for text, actual in zip((x[1], x[0]), outputs):
        expected = layer.compute(text)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@by_chance
@given(
    sizes=kinds,
    cuts=st.lists(st.integers(1, 39), max_size=6),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_text_gets_the_same_bits_however_it_is_cut(
    kernels: ctypes.CDLL, sizes: Sizes, cuts: list[int], num_threads: int, seed: int
) -> None:
    """Beside another text, and if the last token of a row comes again, too."""
    layer, x = make(sizes, seed, 40)
    (expected,) = Runner(kernels, layer, 1).run(x, [Row(0, 0, 40)])
    runner = Runner(kernels, layer, num_threads)
    outputs = []
    places = [0, *sorted(set(cuts)), 40]
    for begin, end in zip(places, places[1:]):
        (held,) = runner.run(x, [Row(0, begin, end, is_held=True)])
        _, again = runner.run(x, [Row(1, 0, end), Row(0, end - 1, end)])
        assert torch.equal(held[-1:], again)
        outputs.append(held)
    assert torch.equal(torch.cat(outputs), expected)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield
