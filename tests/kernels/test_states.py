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
from transformers.models.kimi_linear.modeling_kimi_linear import (
    recurrent_kimi_delta_attention,
)
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_recurrent_gated_delta_rule,
)

from trioserve.kernels.structs import MatrixSpec, SourceSpec, StateSpec

from .chance import by_chance, make_numbers

EPSILON = 1e-6
DELTA, MAMBA2, SHORT_CONV, KIMI = range(4)
# Numbers of a token from which the decays and the gates of KIMI are made.
NARROW = 6, 4


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
        if self.kind == KIMI:
            return [self.num_channels, self.value_heads, *NARROW]
        num_others = 2 if self.kind == DELTA else 1
        return [
            *(self.num_channels, self.num_values),
            *([self.value_heads] * num_others),
        ]


kinds = st.builds(
    Sizes,
    kind=st.sampled_from([DELTA, MAMBA2, SHORT_CONV, KIMI]),
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
        num_decays = heads * sizes.key_dim if sizes.kind == KIMI else heads
        self.decay_bias = make_numbers(seed + 3, num_decays)
        self.skip = make_numbers(seed + 4, heads)
        is_mamba = sizes.kind == MAMBA2
        num_weights = sizes.num_values if is_mamba else sizes.value_dim
        self.norm = make_numbers(seed + 5, num_weights)
        # A decoder of Falcon-H1 may have no norm, or its gate behind the norm.
        self.has_norm = not is_mamba or has_bias
        self.has_gate_behind = self.has_norm and seed % 4 == 1
        self.widening: list[Tensor] = []
        if sizes.kind == KIMI:
            self.widening = [
                make_numbers(seed + 6, num_decays, NARROW[0]),
                make_numbers(seed + 7, sizes.num_values, NARROW[1]),
            ]

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
            has_gate_behind=self.has_gate_behind,
            min_step=0.1,
            max_step=2.0,
        )

    def compute(self, x: Tensor) -> Tensor:
        """Compute the output for the tokens of one text, (num_tokens, num_values)."""
        parts = x.split(self.sizes.parts, dim=-1)
        if self.sizes.kind == SHORT_CONV:
            before, behind, values = parts
            return behind * self._convolve(before * values)
        if self.sizes.kind == KIMI:
            channels, rates, *narrow = parts
            wide = [each @ matrix.T for each, matrix in zip(narrow, self.widening)]
            return self._forget(functional.silu(self._convolve(channels)), rates, *wide)
        return self._mix(functional.silu(self._convolve(parts[0])), *parts[1:])

    def _convolve(self, x: Tensor) -> Tensor:
        padded = functional.pad(x.T, (self.sizes.num_taps - 1, 0))
        weight = self.taps.T[:, None]
        return functional.conv1d(padded, weight, self.bias, groups=len(weight)).T

    def _mix(self, x: Tensor, gates: Tensor, *others: Tensor) -> Tensor:
        sizes = self.sizes
        queries, keys, values = self._split(x)
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
        if self.has_gate_behind:
            return self._normalize_groups(mixed.flatten(1)) * functional.silu(gates)
        gated = mixed.flatten(1) * functional.silu(gates)
        return self._normalize_groups(gated) if self.has_norm else gated

    def _normalize_groups(self, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (self.sizes.key_heads, -1))
        normed = functional.rms_norm(groups, groups.shape[-1:], None, EPSILON)
        return normed.flatten(1) * self.norm

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = self.sizes
        queries, keys, values = x.split([*[sizes.num_keys] * 2, sizes.num_values], -1)
        queries, keys = (
            each.unflatten(1, (-1, sizes.key_dim)) for each in (queries, keys)
        )
        return queries, keys, values.unflatten(1, (-1, sizes.value_dim))

    def _forget(
        self, x: Tensor, rates: Tensor, decays: Tensor, gates: Tensor
    ) -> Tensor:
        """Compute Kimi delta attention by transformers' own function."""
        sizes = self.sizes
        queries, keys, values = self._split(x)
        steps = functional.softplus(decays + self.decay_bias)
        factors = self.decay.repeat_interleave(sizes.key_dim)
        queries, keys = (
            each.repeat_interleave(sizes.group, dim=1) for each in (queries, keys)
        )
        mixed, _ = recurrent_kimi_delta_attention(
            *(queries[None], keys[None], values[None]),
            g=(steps * factors).unflatten(1, (-1, sizes.key_dim))[None],
            beta=rates.sigmoid()[None],
            initial_state=None,
            output_final_state=False,
            use_qk_l2norm_in_kernel=True,
        )
        normed = functional.rms_norm(mixed[0], (sizes.value_dim,), self.norm, EPSILON)
        return normed.flatten(1) * gates.sigmoid()

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
        kernels.test_pack_numbers.restype = c_int64
        self._packed: list[Tensor] = []
        if layer.widening:
            matrices = [self._pack(each) for each in layer.widening]
            self._spec.widen_decays, self._spec.widen_gates = matrices
        size = kernels.test_count_state(ctypes.byref(self._spec))
        self.states = torch.full((2, size), math.nan)

    def _pack(self, weight: Tensor) -> MatrixSpec:
        num_outputs, num_inputs = weight.shape
        spec = MatrixSpec(num_outputs=num_outputs, num_inputs=num_inputs)
        source = SourceSpec(
            rows=weight.data_ptr(), row_bytes=4 * num_inputs, num_outputs=num_outputs
        )
        pointers = ctypes.byref(spec), ctypes.byref(source)
        size = self._kernels.test_pack_numbers(*pointers, None)
        self._packed.append(torch.empty(size))
        self._kernels.test_pack_numbers(
            *pointers, c_void_p(self._packed[-1].data_ptr())
        )
        spec.weights = self._packed[-1].data_ptr()
        return spec

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
        flat = torch.cat(tokens)
        # Room for what is made of narrow numbers.
        num_wide = sum(len(each) for each in self._layer.widening)
        flat = functional.pad(flat, (0, num_wide), value=math.nan).clone()
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
