"""Adapters add to products what PyTorch adds, for sizes and values by chance."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_int32, c_void_p
import math

from hypothesis import given, strategies as st
import numpy as np
import torch
from torch import Tensor

from trioserve.kernels.structs import SourceSpec

from .chance import FORMATS, by_chance, make_numbers
from .conftest import Products


class Adapter(Structure):
    """As door_adapters.cpp has it."""

    _fields_ = [
        *((name, c_void_p) for name in ("a", "b", "scales")),
        *((name, c_int32) for name in ("rank", "cut")),
    ]


@by_chance
@given(
    dtype=st.sampled_from(list(FORMATS)),
    num_outputs=st.integers(1, 90),
    num_inputs=st.integers(1, 90),
    ranks=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    num_rows=st.integers(1, 110),
    num_threads=st.integers(1, 3),
    chooses=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_get_what_their_adapters_add(
    products: Products,
    dtype: torch.dtype,
    num_outputs: int,
    num_inputs: int,
    ranks: list[tuple[int, int, bool]],
    num_rows: int,
    num_threads: int,
    chooses: bool,
    seed: int,
) -> None:
    chance = np.random.default_rng(seed)
    # Numbers that the formats hold exactly.
    x = make_numbers(seed, num_rows, num_inputs).to(dtype).float()
    weights = make_numbers(seed + 1, num_outputs, num_inputs).to(dtype).float()
    rows = torch.from_numpy(chance.integers(-1, len(ranks), num_rows).astype(np.int32))
    if chance.random() < 0.5:
        rows = rows.sort().values
    chosen = torch.from_numpy(chance.integers(0, num_rows, 7).astype(np.int32))
    # A block has 16 outputs, or 32 with wide vectors.
    block = products.kernels.test_count_outputs()
    middle = -(-(-(-num_outputs // block)) // 2) * block
    expected = x.double() @ weights.double().T
    structures, held = [], []
    for number, (first, second, has_scales) in enumerate(ranks):
        cut, rank = 2 * first, 2 * (first + second)
        a = make_numbers(seed + 2 + number, rank, num_inputs).to(dtype).float()
        b = make_numbers(seed + 9 + number, num_outputs, rank).to(dtype).float()
        scales = make_numbers(seed + 5, num_outputs) if has_scales else None
        own = rows == number
        wide = b.double()
        wide[:middle, cut:] = 0
        wide[middle:, :cut] = 0
        if scales is not None and rank:
            expected[own] *= scales
        expected[own] += x[own].double() @ a.double().T @ wide.T
        held += [a, b, scales]
        structures.append(
            Adapter(
                point(a),
                point(b),
                scales if scales is None else point(scales),
                rank,
                cut,
            )
        )
    if chooses:
        expected = expected[chosen.long()]
    actual = torch.full(expected.shape, math.nan)
    source = SourceSpec(
        rows=weights.data_ptr(),
        row_bytes=weights.stride(0) * weights.element_size(),
        kind=0,
        num_outputs=num_outputs,
    )
    products.kernels.test_add_adapters(
        *(FORMATS[dtype], num_threads, ctypes.byref(source), num_inputs),
        *(point(x), num_rows, (Adapter * len(ranks))(*structures), len(ranks)),
        *(point(rows), point(chosen) if chooses else None, len(chosen), point(actual)),
    )
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-3)


def point(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())
