"""Inputs of eight bits are those that torch's own conversion gives, and so are products."""

from __future__ import annotations

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, pad

require_triton()

from trioserve.kernels.stored import (  # noqa: E402
    StoredWeights,
    quantise,
    store,
)
from trioserve.kernels.triton.products import make_splits, multiply_stored  # noqa: E402
from trioserve.kernels.triton.round_inputs import (  # noqa: E402
    find_factors,
    multiply_rounded,
    round_to_codes,
    round_tokens,
)
from trioserve.model.self_check.compare import measure_distance  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_CORES = 132
LARGEST = 448


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE)


def draw_tokens(num_tokens: int, num_inputs: int) -> Tensor:
    """Return tokens of many sizes, the last one without any, as a part of wider rows."""
    sizes = 10.0 ** torch.arange(-4, num_tokens - 4, device=DEVICE)
    sizes[-1] = 0
    wide = draw(num_tokens, 2 * num_inputs) * sizes[:, None]
    return wide.bfloat16()[:, num_inputs:]


def quantise_groups(numbers: Tensor) -> StoredWeights:
    """Quantise numbers to FP8 in groups of 128, by torch."""
    num_inputs = numbers.shape[1]
    groups = pad(numbers, (0, -num_inputs % 128)).unflatten(1, (-1, 128))
    scales = (groups.abs().amax(2) / LARGEST).clamp_min(1e-12)
    codes = (groups / scales[:, :, None]).to(torch.float8_e4m3fn)
    codes = codes.flatten(1)[:, :num_inputs]
    return store(codes, scales, format="fp8", group=128)


# With an end of a group and of a read, and with several reads.
@pytest.mark.parametrize("num_inputs", [96, 1200, 8400])
@pytest.mark.parametrize("group", [0, 128])
def test_tokens_are_rounded_as_weights_are(num_inputs: int, group: int) -> None:
    given = draw_tokens(6, num_inputs)
    if group >= num_inputs:
        pytest.skip("one group")
    expected = quantise_groups(given.float()) if group else quantise(given, "fp8")
    held = expected.codes.view(torch.float8_e4m3fn)
    codes, scales = round_to_codes(given, held.shape[1], group)
    assert torch.equal(scales[:6], expected.scales)
    # A GPU's division may be wrong in the last bit.
    differing = (codes[:6].float() != held.float()).float().mean()
    assert differing <= (0 if DEVICE.type == "cpu" else 1e-3)
    rounded = round_tokens(given, group).float()
    exact = expected.restore(torch.float32)
    assert (rounded - exact).norm() <= 2**-7 * exact.norm()


def make_weights(group: int, *shape: int) -> StoredWeights:
    numbers = draw(*shape, seed=1)
    return quantise_groups(numbers) if group else quantise(numbers, "fp8")


def multiply_exactly(
    given: Tensor,
    weights: Tensor,
    given_scales: Tensor,
    scales: Tensor,
    *,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:
    """Stands in for torch._scaled_mm with groups of 128, which CPUs do not have.

    Source: is_blockwise_1x128_scaling and _scaled_mm in aten/src/ATen of PyTorch 2.11.
    """
    (rows, length), num_outputs = given.shape, weights.shape[1]
    assert rows % 4 == 0 and num_outputs % 16 == 0
    assert given.is_contiguous() and weights.T.is_contiguous()
    assert given_scales.shape == (rows, length // 128)
    assert given_scales.stride() == (1, rows)
    assert scales.T.shape == (num_outputs, length // 128)
    assert scales.T.stride() == (1, num_outputs)
    assert not use_fast_accum
    left = given.float() * given_scales.repeat_interleave(128, 1)
    right = weights.T.float() * scales.T.repeat_interleave(128, 1)
    # Rows behind the tokens may hold anything.
    return linear(left, right, None if bias is None else bias.float()).to(out_dtype)


@pytest.mark.parametrize("group", [0, 128])
def test_products_are_those_with_rounded_numbers(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if group and DEVICE.type == "cpu":
        monkeypatch.setattr(torch, "_scaled_mm", multiply_exactly)
    stored = make_weights(group, 48, 300)
    factors = find_factors(stored)
    assert factors is not None
    given, bias = draw_tokens(6, 300), draw(48, seed=2).bfloat16()
    rounded = round_tokens(given, group)
    splits = make_splits(48, NUM_CORES, DEVICE)
    for own in (None, bias):
        output = multiply_rounded(given, stored, factors, own)
        meant = linear(rounded.float(), stored.restore(torch.float32))
        meant = meant if own is None else meant + own.float()
        assert output.shape == (6, 48) and output.dtype == torch.bfloat16
        assert measure_distance(meant, output, dim=1) < 1e-2
        # The other kernel, for fewer tokens, has the same inputs.
        others = multiply_stored(rounded, stored, own, splits)
        assert measure_distance(others, output, dim=1) < 2e-2


@pytest.mark.parametrize("group", [0, 128])
def test_a_token_is_rounded_in_the_same_way_alone_and_beside_others(group: int) -> None:
    given = draw_tokens(5, 200)
    codes, scales = round_to_codes(given, 256, group)
    rounded = round_tokens(given, group)
    for place, row in enumerate(given):
        own_codes, own_scales = round_to_codes(row[None], 256, group)
        assert torch.equal(own_codes[0].float(), codes[place].float())
        assert torch.equal(own_scales[0], scales[place])
        assert torch.equal(round_tokens(row[None], group)[0], rounded[place])


# The interpreter converts by numpy, which warns.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_that_are_none_stay_none() -> None:
    stored = make_weights(0, 16, 64)
    factors = find_factors(stored)
    assert factors is not None
    given = draw_tokens(3, 64)
    given[0, 5], given[1, 7] = torch.nan, torch.inf
    output = multiply_rounded(given, stored, factors, None)
    assert output[:2].isnan().all() and not output[2].isnan().any()
    assert round_tokens(given, 0)[:2].isnan().any(1).all()


def test_some_weights_leave_their_inputs() -> None:
    assert find_factors(make_weights(0, 20, 64)) is None
    assert find_factors(quantise(draw(16, 64), "int8")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("group", [0, 128])
@pytest.mark.parametrize("num_tokens", [257, 2048])
@pytest.mark.parametrize("num_outputs, num_inputs", [(4096, 14336), (28672, 4096)])
def test_products_of_large_models_by_tensor_cores(
    group: int, num_tokens: int, num_outputs: int, num_inputs: int
) -> None:
    """The sizes of Llama-3.1-8B's feed-forward network; groups are for capability 9.0 alone."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs tensor cores of eight bits")
    if group and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("cuBLAS has no groups here")
    stored = make_weights(group, num_outputs, num_inputs)
    factors = find_factors(stored)
    assert factors is not None
    given = draw(num_tokens, num_inputs, seed=4).bfloat16()
    bias = draw(num_outputs, seed=2).bfloat16()
    output = multiply_rounded(given, stored, factors, bias)
    exact = linear(given, stored.restore(torch.bfloat16), bias)
    assert measure_distance(exact, output) < 0.04
    rounded = linear(round_tokens(given, group), stored.restore(torch.bfloat16), bias)
    assert measure_distance(rounded, output) < 1e-2
