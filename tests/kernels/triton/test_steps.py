"""The kernels between the products of a decoder compute what torch computes."""

from __future__ import annotations

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn import functional

require_triton()

from trioserve.kernels.triton.paged import PagedLayer  # noqa: E402
from trioserve.kernels.triton.steps import (  # noqa: E402
    Angles,
    RotaryLayer,
    normalize,
    weigh_gates,
)
from trioserve.kernels.triton.tiles import Tiles  # noqa: E402
from trioserve.model.attention.kv_cache import quantise  # noqa: E402
from trioserve.model.attention.probe import LayerSpec  # noqa: E402
from trioserve.model.runtimes.recognise.formulas import ACTIVATION_CODES  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON = 1e-5


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE)


def is_close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


def norm(numbers: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(numbers, weight.shape, weight, EPSILON)


@pytest.mark.parametrize("size", [5, 16])
def test_what_is_added_is_normalised_and_the_sum_too(size: int) -> None:
    hidden, added = draw(3, size), draw(3, size, seed=1)
    weight, added_weight = draw(size, seed=2), draw(size, seed=3)
    expected = hidden + 0.4 * norm(added, added_weight)
    total = hidden.clone()
    normed = normalize(
        *(total, weight, EPSILON), added=added, added_weight=added_weight, scale=0.4
    )
    assert normed is not None
    assert is_close(total, expected) and is_close(normed, norm(expected, weight))
    assert normalize(total, None, EPSILON, added=added) is None
    assert is_close(total, expected + added)


def test_nothing_is_added_before_the_first_layer() -> None:
    hidden, weight = draw(2, 8), draw(8, seed=1)
    normed = normalize(hidden, weight, EPSILON)
    assert normed is not None and is_close(normed, norm(hidden, weight))
    assert torch.equal(hidden, draw(2, 8))


@pytest.mark.parametrize("name", [*ACTIVATION_CODES, "sigmoid"])
def test_gates_weigh_numbers(name: str) -> None:
    activate = {
        "silu": functional.silu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "gelu": functional.gelu,
        "relu": functional.relu,
        "relu2": lambda x: functional.relu(x).square(),
        "sigmoid": torch.sigmoid,
    }[name]
    gate_up = 3 * draw(2, 2 * 11)
    gates, numbers = gate_up.chunk(2, dim=1)
    assert is_close(weigh_gates(gates, numbers, name), activate(gates) * numbers)
    assert is_close(weigh_gates(gates, None, name), activate(gates))


@pytest.mark.parametrize("rotary_dim", [12, 8, 0])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("has_scales", [False, True])
def test_queries_are_rotated_and_keys_and_values_stored(
    rotary_dim: int, has_norms: bool, has_scales: bool
) -> None:
    """Some models rotate a part of each head or nothing, and some normalise it before.

    Some have gates behind the values, and some a cache of int8.
    """
    num_heads, num_kv_heads, key_dim, value_dim = 6, 2, 12, 10
    spec = LayerSpec(
        module_name="layer",
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        is_causal=True,
        window=None,
        scaling=1.0,
    )
    cache = torch.zeros(4, 2, num_kv_heads, key_dim + value_dim, device=DEVICE)
    scales = None
    if has_scales:
        cache = cache.to(torch.int8)
        scales = torch.zeros(2, 4, num_kv_heads, 2, device=DEVICE)
    norms = (
        (draw(key_dim, seed=1), draw(key_dim, seed=2)) if has_norms else (None, None)
    )
    paged = PagedLayer(spec, cache, 4, scales=scales, dtype=torch.float32)
    layer = RotaryLayer(paged, rotary_dim, *norms, EPSILON)
    empty = torch.zeros((0, 4), dtype=torch.int32, device=DEVICE)
    tiles = Tiles(
        tables=torch.tensor([[0, 0], [3, 1]], device=DEVICE),
        slots=torch.tensor([1, 1], device=DEVICE),
        positions=torch.tensor([1, 2], device=DEVICE),
        decodes=empty,
        chunks=empty,
    )
    cos, sin = draw(5, rotary_dim, seed=3), draw(5, rotary_dim, seed=4)
    rows = torch.tensor([4, 2], device=DEVICE)
    sizes = [num_heads * key_dim, num_kv_heads * key_dim, num_kv_heads * value_dim]
    # With three numbers more, which nothing reads here.
    inputs = draw(2, sum(sizes) + 3, seed=5)
    qkv = inputs[:, :-3]
    rotated = layer.run(inputs, tiles, Angles(cos=cos, sin=sin, rows=rows))

    def rotate(heads: Tensor, weight: Tensor | None) -> Tensor:
        heads = heads if weight is None else norm(heads, weight)
        turned, rest = heads.split([rotary_dim, key_dim - rotary_dim], dim=-1)
        one, other = turned.chunk(2, dim=-1)
        half = torch.cat((-other, one), dim=-1)
        angle = cos[rows][:, None], sin[rows][:, None]
        return torch.cat((turned * angle[0] + half * angle[1], rest), dim=-1)

    query, key, value = (
        each.unflatten(1, (-1, dim))
        for each, dim in zip(qkv.split(sizes, dim=1), (key_dim, key_dim, value_dim))
    )
    assert is_close(rotated, rotate(query, norms[0]))
    # Position 1 is the second of block 3, and position 2 the first of block 1.
    places = torch.tensor([3, 1], device=DEVICE), torch.tensor([1, 0], device=DEVICE)
    written = cache[places]
    if scales is None:
        stored = torch.cat((rotate(key, norms[1]), value), dim=-1)
        assert is_close(written, stored)
        assert cache.count_nonzero() == stored.numel()
        return
    sides = zip((rotate(key, norms[1]), value), written.split([key_dim, value_dim], -1))
    for own, (numbers, codes) in zip(scales, sides, strict=True):
        expected, factors = quantise(numbers)
        assert is_close(own.transpose(1, 2)[places], factors)
        # Sums of float32 are made in another order, and may be rounded to the next number.
        assert (codes - expected).abs().max() <= 1
        assert own.count_nonzero() == factors.numel()
