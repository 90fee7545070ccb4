"""Each kernel computes what PyTorch computes, for sizes and values by chance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
from ctypes import Structure, c_bool, c_float, c_int32, c_void_p
from dataclasses import dataclass
import math
from typing import Any

import gguf
from gguf_blocks import draw_blocks
from hypothesis import example, given, strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trioserve.kernels.restore import describe_stored, restore
from trioserve.kernels.stored import StoredWeights, store
from trioserve.kernels.structs import MatrixSpec, SourceSpec

from .chance import FORMATS, by_chance, make_numbers
from .conftest import Products

# The largest codes of inputs: of the formats for 8 bits, and of those for 16.
INPUT_LIMITS = [127, 32767]
GGUF_KINDS = (
    "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K MXFP4 Q2_K Q3_K IQ4_NL IQ4_XS"
).split()
# SourceKind of native/gguf.h.
SOURCE_KINDS = {
    name: code for code, name in enumerate(["torch.float32", *GGUF_KINDS])
} | {"torch.bfloat16": 2}

# FormatCode of native/matrix.h of codes that are places in a table; inputs have 16 bits.
TABLES = {"MXFP4": 6, "IQ4_NL": 7, "IQ4_XS": 7}

# Formats of stored weights, as native/matrix.h numbers those with inputs of 8 bits if it has them.
STORED_FORMATS = {"int8": 2, "int4": 3, "mxfp4": 6}

# Kinds of fewer bits, with groups of 16.
K_KINDS = ["Q2_K", "Q3_K"]

# The types of a KV cache, as native/matrix.h numbers them.
CACHES = {**FORMATS, torch.int8: 2}


def misalign(tensor: Tensor, offset: int) -> Tensor:
    """Return a copy that begins `offset` numbers after an aligned address."""
    room = torch.empty(tensor.numel() + offset, dtype=tensor.dtype)
    copy = room[offset:].view(tensor.shape)
    return copy.copy_(tensor)


def test_exp_is_exact_to_two_units_and_zero_for_masked_scores(
    kernels: ctypes.CDLL,
) -> None:
    x = torch.cat([torch.linspace(-87, 88, 20_001), torch.tensor([-88.0, -math.inf])])
    out = torch.empty_like(x)
    kernels.test_exp(c_void_p(x.data_ptr()), len(x), c_void_p(out.data_ptr()))
    expected = x.double().exp()
    assert (out[:-2] / expected[:-2] - 1).abs().max() < 2.5e-7
    assert out[-2:].tolist() == [0.0, 0.0]


def test_activations_are_those_of_pytorch(kernels: ctypes.CDLL) -> None:
    x = torch.cat([torch.linspace(-30, 30, 6_001), torch.tensor([math.nan])])
    for kind, expected in enumerate(
        [
            functional.silu(x),
            functional.gelu(x, approximate="tanh"),
            functional.gelu(x),
            functional.relu(x),
        ]
    ):
        out = torch.empty_like(x)
        kernels.test_activate(
            kind, c_void_p(x.data_ptr()), len(x), c_void_p(out.data_ptr())
        )
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_clamped_gates_weigh_as_those_of_pytorch(kernels: ctypes.CDLL) -> None:
    points = torch.tensor([-30.0, -3.0, -2.9, 0.0, 2.9, 3.0, 30.0, math.nan])
    gates, numbers = torch.cartesian_prod(points, points).T.contiguous()
    out = torch.empty_like(gates)
    kernels.test_weigh_clamped(
        *(c_float(1.7), c_float(3.0), c_void_p(gates.data_ptr())),
        *(c_void_p(numbers.data_ptr()), len(out), c_void_p(out.data_ptr())),
    )
    gates, numbers = gates.clamp(max=3.0), numbers.clamp(-3.0, 3.0)
    expected = (numbers + 1.0) * gates * torch.sigmoid(1.7 * gates)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@by_chance
@given(size=st.integers(1, 70), seed=st.integers(0, 99))
def test_numbers_are_rounded_as_pytorch_rounds(
    kernels: ctypes.CDLL, size: int, seed: int
) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32)
    x = torch.from_numpy(bits.view(np.float32)).nan_to_num()
    out = torch.empty(size, dtype=torch.bfloat16)
    kernels.test_round(c_void_p(x.data_ptr()), size, c_void_p(out.data_ptr()))
    assert torch.equal(out.view(torch.int16), x.bfloat16().view(torch.int16))


@by_chance
@given(size=st.integers(1, 200), seed=st.integers(0, 99), offset=st.integers(0, 3))
def test_a_norm_is_that_of_pytorch(
    kernels: ctypes.CDLL, size: int, seed: int, offset: int
) -> None:
    x = misalign(make_numbers(seed, size) * 3, offset)
    weight = make_numbers(seed + 1, size)
    out = torch.empty(size)
    kernels.test_normalize(
        *(c_void_p(x.data_ptr()), c_void_p(weight.data_ptr())),
        *(size, c_float(1e-5), c_void_p(out.data_ptr())),
    )
    expected = functional.rms_norm(x, (size,), weight, 1e-5)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@by_chance
@example(torch.bfloat16, 270, 33, 1031, 1, 1, 2, 0)
@given(
    dtype=st.sampled_from(list(FORMATS)),
    num_rows=st.integers(1, 120),
    num_outputs=st.integers(1, 150),
    num_inputs=st.integers(1, 150),
    padding=st.integers(0, 3),
    offset=st.integers(0, 3),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_product_is_that_of_pytorch(
    products: Products,
    dtype: torch.dtype,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    padding: int,
    offset: int,
    num_threads: int,
    seed: int,
) -> None:
    # Numbers that bfloat16 holds exactly, so that both round the same operands.
    x = make_numbers(seed, num_rows, num_inputs).bfloat16().float()
    stored = make_numbers(seed + 1, num_outputs, num_inputs + padding).to(dtype)
    stored = misalign(stored, offset)[:, :num_inputs]
    # The outputs come from two sources.
    cut = num_outputs // 3
    sources = [describe(part) for part in (stored[:cut], stored[cut:])]
    spec = MatrixSpec(
        format=FORMATS[dtype], num_outputs=num_outputs, num_inputs=num_inputs
    )
    actual = multiply(products.kernels, spec, sources, x, num_threads)
    expected = x.double() @ stored.double().T
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@contextmanager
def without_tiles(tiles: ctypes.CDLL) -> Iterator[None]:
    """Let vectors compute."""
    tiles.test_use_tiles(False)
    try:
        yield
    finally:
        tiles.test_use_tiles(True)


def draw_stored(
    format: str,
    shape: tuple[int, int],
    group: int,
    has_zeros: bool,
    has_order: bool,
    seed: int,
) -> StoredWeights:
    """Return weights with codes, scales and zeros of chance; MXFP4 has groups of 32."""
    num_outputs, num_inputs = shape
    chance = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, shape, generator=chance, dtype=torch.uint8)
    codes = codes.view(torch.int8) if format == "int8" else codes & 15
    is_mxfp4 = format == "mxfp4"
    group = 32 if is_mxfp4 else group
    groups = num_outputs, -(-num_inputs // group) if 0 < group < num_inputs else 1
    scales = (torch.rand(groups, generator=chance) + 0.1).half()
    if is_mxfp4:
        scales = torch.randint(120, 128, groups, generator=chance, dtype=torch.uint8)
    zeros = None
    if has_zeros and not is_mxfp4:
        zeros = torch.randint(-8, 24, groups, generator=chance)
    order = torch.randperm(num_inputs, generator=chance) if has_order else None
    return store(codes, scales, format=format, zeros=zeros, group=group, order=order)


STORED = st.builds(
    draw_stored,
    format=st.sampled_from([*STORED_FORMATS]),
    shape=st.tuples(st.integers(1, 80), st.sampled_from([32, 96, 232, 608])),
    group=st.sampled_from([0, 32, 64, 128]),
    has_zeros=st.booleans(),
    has_order=st.booleans(),
    seed=st.integers(0, 99),
)


def describe(weights: Tensor) -> SourceSpec:
    return SourceSpec(
        rows=weights.data_ptr(),
        row_bytes=weights.stride(0) * weights.element_size(),
        kind=SOURCE_KINDS[str(weights.dtype)],
        num_outputs=len(weights),
    )


def multiply(
    kernels: ctypes.CDLL,
    spec: MatrixSpec,
    sources: list[SourceSpec],
    x: Tensor,
    num_threads: int = 1,
) -> Tensor:
    out = torch.full((len(x), spec.num_outputs), math.nan)
    kernels.test_multiply(
        *(ctypes.byref(spec), (SourceSpec * len(sources))(*sources), len(sources)),
        *(num_threads, c_void_p(x.data_ptr()), len(x), c_void_p(out.data_ptr())),
    )
    return out.double()


def quantise(
    x: Tensor,
    group_size: int,
    limit: int = 127,
    scale_type: torch.dtype = torch.float32,
) -> Tensor:
    """Round numbers as the kernels do: a group's largest magnitude becomes the limit.

    All is computed in float32, because a number between two codes goes to either.
    """
    padded = functional.pad(x, (0, -x.shape[1] % group_size))
    groups = padded.unflatten(1, (-1, group_size))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    scales = (largest / limit).to(scale_type).float()
    if scale_type == torch.float32:
        # PyTorch divides a plain number by its reciprocal, which rounds twice.
        codes = (groups * (torch.full_like(largest, limit) / largest)).round()
    else:
        codes = (groups / scales.clamp_min(1e-30)).round()
    codes = codes.clamp(-limit, limit).double()
    return (codes * scales.double()).flatten(1)[:, : x.shape[1]]


@by_chance
@example(127, 37, 33, 1031, 64, 0)
@given(
    limit=st.sampled_from(INPUT_LIMITS),
    num_rows=st.integers(1, 40),
    num_outputs=st.integers(1, 80),
    num_inputs=st.integers(1, 150),
    # Tiles hold up to 64.
    group_size=st.sampled_from([16, 36, 64, 152]),
    seed=st.integers(0, 99),
)
def test_an_int8_product_is_that_of_rounded_weights_and_inputs(
    products: Products,
    limit: int,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    group_size: int,
    seed: int,
) -> None:
    x = make_numbers(seed, num_rows, num_inputs)
    # Outputs of very different sizes, and one of zeros.
    sizes = 10.0 ** torch.arange(num_outputs).remainder(6).sub(2)
    sizes[num_outputs // 2] = 0
    weights = make_numbers(seed + 1, num_outputs, num_inputs) * sizes[:, None]
    spec = MatrixSpec(
        format=2 + 2 * INPUT_LIMITS.index(limit),
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        group_size=group_size,
    )
    actual = multiply(products.kernels, spec, [describe(weights)], x) / sizes.clamp_min(
        1e-9
    )
    weights = quantise(weights, group_size, scale_type=torch.float16)
    expected = quantise(x, group_size, limit) @ weights.T
    expected /= sizes.clamp_min(1e-9)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert (actual - expected).abs().mean() < 3e-3


@by_chance
@example("Q4_1", False, 127, 37, 33, 19, 0)
@example("MXFP4", False, 32767, 37, 33, 19, 0)
@given(
    kind=st.sampled_from(["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *TABLES, *K_KINDS]),
    wide=st.booleans(),
    limit=st.sampled_from(INPUT_LIMITS),
    num_rows=st.integers(1, 40),
    num_outputs=st.integers(1, 80),
    num_groups=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_product_of_gguf_blocks_is_that_of_their_numbers(
    products: Products,
    kind: str,
    wide: bool,
    limit: int,
    num_rows: int,
    num_outputs: int,
    num_groups: int,
    seed: int,
) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    num_inputs = max(32, gguf.GGML_QUANT_SIZES[type_][0]) * num_groups
    x = make_numbers(seed, num_rows, num_inputs)
    if kind in TABLES or kind in K_KINDS:
        # Their weights are large.
        x /= 128
        blocks = draw_blocks((num_outputs, num_inputs), type_, seed + 1)
    else:
        numbers = make_numbers(seed + 1, num_outputs, num_inputs).numpy() + 0.3
        blocks = gguf.quantize(numbers, type_)
    order = torch.randperm(
        num_outputs, generator=torch.Generator().manual_seed(seed + 2)
    )
    source = SourceSpec(
        rows=blocks.ctypes.data,
        order=order.data_ptr(),
        row_bytes=blocks.shape[1],
        kind=SOURCE_KINDS[kind],
        num_outputs=num_outputs,
    )
    # Codes of four bits fit into eight, too, and large groups into small ones.
    format = 3 if kind in ("Q4_0", "Q4_1", *K_KINDS) and not wide else 2
    format += 2 * INPUT_LIMITS.index(limit)
    if limit == 32767 and not wide:
        format = TABLES.get(kind, format)
    group_size = 16 if wide or kind in K_KINDS else 32
    spec = MatrixSpec(
        format=format,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        group_size=group_size,
    )
    actual = multiply(products.kernels, spec, [source], x)
    numbers = gguf.dequantize(blocks, type_)[order.numpy()]
    weights = torch.from_numpy(numbers).double()
    expected = quantise(x, group_size, limit) @ weights.T
    if kind in K_KINDS or kind == "IQ4_XS":
        # The product of two scales is rounded to float16.
        assert torch.dist(actual, expected) < 1e-3 * x.norm() * weights.norm()
        return
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert (actual - expected).abs().mean() < 3e-3


@by_chance
@example(draw_stored("mxfp4", (33, 96), 32, False, False, 0), 32767, 37, 0)
@given(
    stored=STORED,
    limit=st.sampled_from(INPUT_LIMITS),
    num_rows=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_a_product_of_stored_weights_is_that_of_their_numbers(
    products: Products, stored: StoredWeights, limit: int, num_rows: int, seed: int
) -> None:
    if stored.format == "mxfp4":
        limit = 32767
    num_outputs, num_inputs = stored.shape
    x = make_numbers(seed, num_rows, num_inputs) / 128
    source, held = describe_stored(stored)
    code, group_size = STORED_FORMATS[stored.format], 32
    spec = MatrixSpec(
        format=(
            code if stored.format == "mxfp4" else code + 2 * INPUT_LIMITS.index(limit)
        ),
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        group_size=group_size,
        columns=source.columns,
    )
    actual = multiply(products.kernels, spec, [source], x)
    weights = stored.restore(torch.float64)
    order = slice(None) if stored.order is None else stored.order.long()
    expected = quantise(x[:, order], group_size, limit) @ weights[:, order].T
    # The minimum of a group is rounded to float16.
    assert torch.dist(actual, expected) < 1e-3 * x.norm() * weights.norm()


@by_chance
@given(
    kind=st.sampled_from(["F32", "Q4_1", "MXFP4", "IQ4_NL"]),
    limit=st.sampled_from(INPUT_LIMITS),
    num_rows=st.integers(8, 40),
    num_outputs=st.integers(1, 80),
    num_inputs=st.sampled_from([32, 96, 608]),
    group_size=st.sampled_from([16, 32, 64]),
    seed=st.integers(0, 99),
)
def test_a_quantised_product_has_the_same_bits_by_tiles_and_by_vectors(
    tiles: ctypes.CDLL,
    kind: str,
    limit: int,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    group_size: int,
    seed: int,
) -> None:
    x = make_numbers(seed, num_rows, num_inputs)
    weights = make_numbers(seed + 1, num_outputs, num_inputs)
    source = describe(weights)
    if kind != "F32":
        type_ = gguf.GGMLQuantizationType[kind]
        blocks = draw_blocks((num_outputs, num_inputs), type_, seed)
        source.rows, source.row_bytes = blocks.ctypes.data, blocks.shape[1]
        source.kind = SOURCE_KINDS[kind]
        # A block of the file has one scale for 32.
        group_size = min(32, group_size)
    format = 2 + (kind == "Q4_1") + 2 * INPUT_LIMITS.index(limit)
    spec = MatrixSpec(
        format=TABLES.get(kind, format),
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        group_size=group_size,
    )
    by_tiles = multiply(tiles, spec, [source], x)
    with without_tiles(tiles):
        by_vectors = multiply(tiles, spec, [source], x)
    assert torch.equal(by_tiles, by_vectors)


def test_tiles_multiply_quantised_weights(tiles: ctypes.CDLL) -> None:
    if not hasattr(tiles, "test_count_byte_products"):
        pytest.skip("only the stand-in counts")
    before = tiles.test_count_byte_products()
    weights = make_numbers(0, 32, 128)
    spec = MatrixSpec(format=2, num_outputs=32, num_inputs=128, group_size=64)
    multiply(tiles, spec, [describe(weights)], make_numbers(1, 20, 128))
    # Two tiles of rows, two of outputs, and two groups.
    assert tiles.test_count_byte_products() - before == 8


@by_chance
@given(kind=st.sampled_from(GGUF_KINDS), seed=st.integers(0, 99))
def test_gguf_blocks_hold_the_numbers_that_ggml_reads(
    kernels: ctypes.CDLL, kind: str, seed: int
) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    num_inputs = 3 * 256
    row = draw_blocks((1, num_inputs), type_, seed)
    out = torch.full((num_inputs,), math.nan)
    source = SourceSpec(
        rows=row.ctypes.data,
        row_bytes=row.shape[1],
        kind=SOURCE_KINDS[kind],
        num_outputs=1,
    )
    kernels.test_read_numbers(
        ctypes.byref(source), num_inputs, c_void_p(out.data_ptr())
    )
    expected = torch.from_numpy(gguf.dequantize(row, type_)[0])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format", [2, 4])
def test_a_row_with_infinity_or_nan_spoils_no_other(
    products: Products, format: int
) -> None:
    x = make_numbers(0, 9, 40)
    x[0, 3], x[2, 39] = math.inf, math.nan
    weights = make_numbers(1, 20, 40)
    spec = MatrixSpec(format=format, num_outputs=20, num_inputs=40, group_size=40)
    actual = multiply(products.kernels, spec, [describe(weights)], x)
    is_spoilt = ~actual.isfinite().all(dim=1)
    assert is_spoilt.tolist() == [True, False, True, *[False] * 6]


class Shape(Structure):
    """AttentionShape of native/attention.h."""

    _fields_ = [
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "key_dim")),
        *((name, c_int32) for name in ("value_dim", "block_size")),
        *((name, c_float) for name in ("scaling", "softcap")),
        ("window", c_int32),
        ("sinks", c_void_p),
        ("table", c_int32),
        *((name, c_bool) for name in ("joins_images", "values_in_keys")),
    ]


def attend(
    query: Tensor, key: Tensor, value: Tensor, shape: Shape, sinks: Tensor | None
) -> Tensor:
    """Attend as the formula says, in float64.

    Args:
      query: (num_queries, num_heads, key_dim), the last of the keys' tokens
      key, value: (num_keys, num_kv_heads, dim)
    """
    groups = shape.num_heads // shape.num_kv_heads
    key, value = (x.double().repeat_interleave(groups, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * shape.scaling
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    positions = torch.arange(len(key))
    queries = positions[len(key) - len(query) :, None]
    visible = positions <= queries
    if shape.window:
        visible &= positions > queries - shape.window
    scores = scores.masked_fill(~visible, -math.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)[..., : len(key)]
    return torch.einsum("hqk,khd->qhd", weights, value)


def attend_paged(
    kernels: ctypes.CDLL,
    shape: Shape,
    dtype: torch.dtype,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_threads: int,
) -> Tensor:
    """Attend by the kernels; the arguments are those of attend."""
    num_blocks = -(-len(key) // shape.block_size) + 2
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
    out = torch.full((len(query), shape.num_heads, shape.value_dim), math.nan)
    kernels.test_attend(
        *(CACHES[dtype], num_threads, ctypes.byref(shape), len(query), len(key)),
        *(c_void_p(each.data_ptr()) for each in (query, key, value, blocks)),
        # A former sequence left large numbers in its blocks.
        *(num_blocks, c_float(1e30), c_void_p(out.data_ptr())),
    )
    return out


def round_trip(rows: Tensor) -> Tensor:
    """Return what a cache of eight bits gives back, by the rule of native/kv_cache.h."""
    peaks = rows.abs().amax(dim=-1, keepdim=True)
    # A number divided by a tensor would be rounded twice.
    inverses = torch.full_like(peaks, 127) / peaks
    codes = (rows * torch.where(peaks > 0, inverses, 0)).round()
    return codes * (peaks / 127)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The last tokens of a sequence attend to all of them, with random numbers."""

    dtype: torch.dtype
    num_queries: int
    num_earlier: int
    num_kv_heads: int
    group_size: int
    key_dim: int
    value_dim: int
    block_size: int
    softcap: float
    window: int
    has_sinks: bool
    values_in_keys: bool
    num_threads: int
    seed: int

    def attend(self, kernels: ctypes.CDLL) -> tuple[Tensor, Tensor]:
        """Return what the kernels compute, and what the formula says."""
        num_heads = self.num_kv_heads * self.group_size
        query = self._draw(0, self.num_queries, num_heads, self.key_dim)
        num_keys = self.num_earlier + self.num_queries
        key = self._draw(1, num_keys, self.num_kv_heads, self.key_dim)
        value = self._draw(2, num_keys, self.num_kv_heads, self.value_dim)
        if self.values_in_keys:
            value = key[..., : self.value_dim].contiguous()
        sinks = make_numbers(self.seed + 3, num_heads) if self.has_sinks else None
        shape = Shape(
            num_heads=num_heads,
            num_kv_heads=self.num_kv_heads,
            key_dim=self.key_dim,
            value_dim=value.shape[-1],
            block_size=self.block_size,
            scaling=self.key_dim**-0.5,
            softcap=self.softcap,
            window=self.window,
            sinks=None if sinks is None else sinks.data_ptr(),
            values_in_keys=self.values_in_keys,
        )
        tensors = (query, key, value)
        out = attend_paged(kernels, shape, self.dtype, *tensors, self.num_threads)
        if self.dtype == torch.int8:
            key, value = round_trip(key), round_trip(value)
            if self.values_in_keys:
                value = key[..., : self.value_dim]
        return out, attend(query, key, value, shape, sinks)

    def _draw(self, number: int, *shape: int) -> Tensor:
        return make_numbers(self.seed + number, *shape).bfloat16().float()


CASES: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from(list(CACHES)),
    "num_queries": st.integers(1, 60),
    "num_earlier": st.sampled_from([0, 1, 15, 16, 17, 130, 300, 700]),
    "num_kv_heads": st.integers(1, 3),
    "group_size": st.integers(1, 5),
    "key_dim": st.integers(1, 20).map(lambda n: 2 * n),
    "value_dim": st.integers(1, 40),
    "block_size": st.sampled_from([1, 3, 4, 8, 16, 32, 200]),
    "softcap": st.sampled_from([0.0, 5.0]),
    "window": st.sampled_from([0, 1, 7, 40, 200]),
    "has_sinks": st.booleans(),
    "values_in_keys": st.booleans(),
    "num_threads": st.integers(1, 3),
    "seed": st.integers(0, 99),
}
ONE_QUERY: dict[str, Any] = {
    **{"dtype": torch.float32, "num_queries": 1, "num_kv_heads": 1},
    **{"softcap": 0.0, "values_in_keys": False, "seed": 0},
}


@by_chance
@given(case=st.builds(Case, **CASES))
# The keys of 42 blocks of three end within a vector, and more keys follow.
@example(
    case=Case(
        **ONE_QUERY,
        **{"num_earlier": 130, "group_size": 1, "key_dim": 2, "value_dim": 1},
        **{"block_size": 3, "window": 0, "has_sinks": False, "num_threads": 1},
    )
)
# The keys are cut into parts, of which the window leaves out the first.
@example(
    case=Case(
        **ONE_QUERY,
        **{"num_earlier": 700, "group_size": 3, "key_dim": 16, "value_dim": 16},
        **{"block_size": 16, "window": 200, "has_sinks": True, "num_threads": 3},
    )
)
# A number of the keys lies in the middle between two codes of eight bits.
@example(
    case=Case(
        **ONE_QUERY | {"dtype": torch.int8, "seed": 36},
        **{"num_earlier": 1, "group_size": 1, "key_dim": 10, "value_dim": 2},
        **{"block_size": 1, "window": 0, "has_sinks": False, "num_threads": 1},
    )
)
def test_attention_is_the_formula(kernels: ctypes.CDLL, case: Case) -> None:
    out, expected = case.attend(kernels)
    # Where operands are bfloat16, the softmax's weights are rounded to it, too; beside a cache
    # of eight bits they are rounded to 16.
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.int8: 1e-3}[
        case.dtype
    ]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


# What tiles compute, if enough queries share keys.
TILE_CASES = {
    **CASES,
    "dtype": st.just(torch.bfloat16),
    "num_kv_heads": st.integers(1, 2),
    "group_size": st.integers(1, 9),
    "key_dim": st.sampled_from([2, 32, 36, 64, 80]),
    "value_dim": st.sampled_from([16, 27, 32, 64, 80]),
    "block_size": st.sampled_from([16, 32, 48, 144]),
}


CHUNK: dict[str, Any] = {
    **{"dtype": torch.bfloat16, "num_earlier": 300, "num_kv_heads": 1},
    **{"key_dim": 64, "value_dim": 64, "block_size": 16, "softcap": 0.0, "window": 0},
    **{"has_sinks": False, "values_in_keys": False, "num_threads": 1, "seed": 0},
}


@by_chance
@given(case=st.builds(Case, **TILE_CASES))
# The second tile has a single row.
@example(case=Case(num_queries=17, group_size=1, **CHUNK))
def test_attention_by_tiles_is_the_formula(tiles: ctypes.CDLL, case: Case) -> None:
    out, expected = case.attend(tiles)
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("values_in_keys", "fewest"), [(False, 4), (True, 12)])
@pytest.mark.parametrize("by_tiles", [False, True])
def test_tiles_compute_the_attention_of_many_queries(
    tiles: ctypes.CDLL, values_in_keys: bool, fewest: int, by_tiles: bool
) -> None:
    """Queries of two heads that share keys count together."""
    case = Case(
        num_queries=fewest if by_tiles else fewest - 1,
        group_size=2,
        **{**CHUNK, "values_in_keys": values_in_keys},
    )
    out, _ = case.attend(tiles)
    with without_tiles(tiles):
        by_vectors, _ = case.attend(tiles)
    # Sums are added in another order.
    assert torch.equal(out, by_vectors) != by_tiles


@by_chance
@given(
    dtype=st.sampled_from([torch.float32, torch.int8]),
    num_queries=st.integers(2, 60),
    num_earlier=st.sampled_from([0, 100, 255, 300, 700, 1300]),
    group_size=st.integers(1, 5),
    block_size=st.sampled_from([1, 16, 48, 200]),
    window=st.sampled_from([0, 40, 500]),
    has_sinks=st.booleans(),
    values_in_keys=st.booleans(),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_a_query_gets_the_same_bits_alone_and_beside_others(
    kernels: ctypes.CDLL,
    dtype: torch.dtype,
    num_queries: int,
    num_earlier: int,
    group_size: int,
    block_size: int,
    window: int,
    has_sinks: bool,
    values_in_keys: bool,
    num_threads: int,
    seed: int,
) -> None:
    """However its keys are spread over threads."""
    num_keys = num_earlier + num_queries
    query = make_numbers(seed, num_queries, group_size, 8)
    key, value = make_numbers(seed + 1, 2, num_keys, 1, 8)
    sinks = make_numbers(seed + 3, group_size)
    shape = Shape(
        num_heads=group_size,
        num_kv_heads=1,
        key_dim=8,
        value_dim=8,
        block_size=block_size,
        scaling=1.0,
        window=window,
        sinks=sinks.data_ptr() if has_sinks else None,
        values_in_keys=values_in_keys,
    )
    together = attend_paged(kernels, shape, dtype, query, key, value, num_threads)
    alone = attend_paged(kernels, shape, dtype, query[-1:], key, value, 1)
    assert torch.equal(together[-1:], alone)


@by_chance
@given(stored=STORED, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_stored_weights_are_restored_as_by_pytorch(
    needs_kernels: None, stored: StoredWeights, dtype: torch.dtype
) -> None:
    torch.testing.assert_close(restore(stored, dtype), stored.restore(dtype))
