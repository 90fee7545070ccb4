"""The scans of logits find the same as a sort and a sum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
from ctypes import c_void_p

from hypothesis import given, strategies as st
import numpy as np

from trioserve.kernels.structs import LogitsSpec

from .chance import by_chance

KINDS = ["normal", "equal", "ties", "zeros", "rising", "infinite", "broken", "nan"]


@st.composite
def make_rows(draw: st.DrawFn) -> np.ndarray:
    """Rows with gaps between them, at any address."""
    num_rows = draw(st.integers(1, 5))
    size = draw(st.one_of(st.integers(1, 70), st.integers(500, 4000)))
    gap, offset = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    room = np.full(num_rows * (size + gap) + offset, np.inf, dtype=np.float32)
    rows = room[offset:].reshape(num_rows, size + gap)[:, :size]
    for row in rows:
        row[:] = fill(draw(st.sampled_from(KINDS)), size, chance)
    return rows


def fill(kind: str, size: int, chance: np.random.Generator) -> np.ndarray:
    numbers = 5 * chance.standard_normal(size)
    if kind == "equal":
        return np.full(size, chance.choice([-np.inf, -2.0, 0.0, np.inf]))
    if kind == "ties":
        return numbers.round()
    if kind == "zeros":
        return chance.choice([-0.0, 0.0, -1.0], size)
    if kind == "rising":
        return np.sort(numbers)
    if kind == "infinite":
        return np.where(chance.random(size) < 0.9, -np.inf, numbers)
    if kind == "broken":
        strange = chance.choice([np.nan, np.inf, -np.inf, -np.nan], size)
        return np.where(chance.random(size) < 0.1, strange, numbers)
    return np.full(size, np.nan) if kind == "nan" else numbers


def describe(rows: np.ndarray) -> LogitsSpec:
    return LogitsSpec(
        numbers=rows.ctypes.data,
        stride=rows.strides[0] // 4,
        num_rows=rows.shape[0],
        vocab_size=rows.shape[1],
    )


@contextmanager
def open_pool(kernels: ctypes.CDLL, num_threads: int) -> Iterator[c_void_p]:
    kernels.test_open_pool.restype = c_void_p
    pool = c_void_p(kernels.test_open_pool(num_threads))
    yield pool
    kernels.test_close_pool(pool)


def point(array: np.ndarray) -> c_void_p:
    return c_void_p(array.ctypes.data)


def sort(rows: np.ndarray) -> np.ndarray:
    """Return tokens in order: NaN first, then the largest; of equal ones the lowest."""
    tokens = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    return np.lexsort((tokens, -rows, ~np.isnan(rows)))


@by_chance
@given(rows=make_rows(), num_threads=st.integers(1, 3))
def test_the_best_token_is_the_first_of_a_sort(
    kernels: ctypes.CDLL, rows: np.ndarray, num_threads: int
) -> None:
    found = np.full(len(rows), -1)
    with open_pool(kernels, num_threads) as pool:
        kernels.trioserve_find_best(pool, ctypes.byref(describe(rows)), point(found))
    assert found.tolist() == sort(rows)[:, 0].tolist()


@by_chance
@given(
    rows=make_rows(),
    count=st.sampled_from([1, 2, 20, 60, 256, 4000]),
    num_threads=st.integers(1, 3),
)
def test_the_top_tokens_are_the_first_of_a_sort(
    kernels: ctypes.CDLL, rows: np.ndarray, count: int, num_threads: int
) -> None:
    count = min(count, rows.shape[1])
    found = np.full((len(rows), count), -1)
    values = np.zeros((len(rows), count), dtype=np.float32)
    with open_pool(kernels, num_threads) as pool:
        kernels.trioserve_find_top(
            *(pool, ctypes.byref(describe(rows)), count, point(values), point(found))
        )
    expected = sort(rows)[:, :count]
    assert found.tolist() == expected.tolist()
    np.testing.assert_array_equal(values, np.take_along_axis(rows, expected, 1))


@by_chance
@given(
    rows=make_rows(),
    group_size=st.sampled_from([1, 100, 256]),
    num_threads=st.integers(1, 3),
)
def test_weights_are_summed_up_in_groups(
    kernels: ctypes.CDLL, rows: np.ndarray, group_size: int, num_threads: int
) -> None:
    num_groups = -(-rows.shape[1] // group_size)
    largest = np.zeros(len(rows), dtype=np.float32)
    sums = np.full((len(rows), num_groups), np.nan)
    with open_pool(kernels, num_threads) as pool:
        kernels.trioserve_sum_weights(
            *(pool, ctypes.byref(describe(rows)), group_size),
            *(point(largest), point(sums)),
        )
    wide = np.where(np.isnan(rows), -np.inf, rows).astype(np.float64)
    np.testing.assert_array_equal(largest, wide.max(axis=1))
    with np.errstate(invalid="ignore"):
        weights = np.nan_to_num(np.exp(wide - largest[:, None]))
    starts = np.arange(0, rows.shape[1], group_size)
    expected = np.add.reduceat(weights, starts, axis=1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-37)
