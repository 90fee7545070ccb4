"""Products with weights in fewer bits than 16 are those with the dequantised weights."""

from __future__ import annotations

from dataclasses import replace

from interpreter import require_triton
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

require_triton()

from trioserve.kernels.stored import (  # noqa: E402
    NotStored,
    StoredWeights,
    join,
    quantise,
    store,
)
from trioserve.kernels.triton.products import (  # noqa: E402
    Gates,
    make_splits,
    multiply_plain,
    multiply_stored,
    restore_stored,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_CORES = 132

# Name, inputs of a group, has zeros.
FORMATS = [
    ("int4", 32, False),
    ("int4", 64, True),
    ("int4", 128, True),
    ("int4", 0, False),
    ("int8", 0, False),
    ("int8", 64, True),
    ("fp8", 0, False),
    ("fp8", 128, False),
    ("mxfp4", 32, False),
]


def draw(*shape: int, high: int = 0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if high:
        return torch.randint(0, high, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def multiply(given: Tensor, stored: StoredWeights, bias: Tensor | None) -> Tensor:
    splits = make_splits(stored.num_outputs, NUM_CORES, DEVICE)
    output = multiply_stored(given, stored, bias, splits)
    assert not splits.tickets.any()
    return output


def make(
    format: str, group: int, has_zeros: bool, num_outputs: int, num_inputs: int
) -> tuple[StoredWeights, Tensor]:
    """Return random weights, and their dequantised values by their definition."""
    count = -(-num_inputs // group) if group else 1
    places = torch.arange(num_inputs) // (group or num_inputs)
    scales = draw(num_outputs, count, seed=2).abs() / 50
    zeros = None
    if format == "mxfp4":
        codes = draw(num_outputs, num_inputs, high=16).to(torch.uint8)
        values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers = values[codes.long() & 7] * torch.where(codes < 8, 1.0, -1.0)
        scales = draw(num_outputs, count, high=9, seed=2).to(torch.uint8) + 115
        factors = 2.0 ** (scales.float() - 127)
    elif format == "fp8":
        # All of them but NaN.
        codes = draw(num_outputs, num_inputs, high=256).to(torch.uint8)
        codes = torch.where(codes & 127 == 127, 0, codes).view(torch.float8_e4m3fn)
        numbers, factors = codes.float(), scales
    else:
        high = 16 if format == "int4" else 256
        drawn = draw(num_outputs, num_inputs, high=high)
        codes = drawn.to(torch.uint8) if high == 16 else (drawn - 128).to(torch.int8)
        numbers = codes.float()
        scales = scales.half()
        factors = scales.float()
        if has_zeros:
            zeros = draw(num_outputs, count, high=17, seed=3).to(torch.int16)
            numbers = numbers - zeros[:, places].float()
        elif high == 16:
            numbers = numbers - 8
    stored = store(codes, scales, format=format, zeros=zeros, group=group)
    return stored.to(DEVICE), (numbers * factors[:, places]).to(DEVICE)


@pytest.mark.parametrize("format, group, has_zeros", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_restored(
    format: str, group: int, has_zeros: bool, dtype: torch.dtype
) -> None:
    # Neither a whole number of blocks, nor of bytes that are read at a time.
    stored, meant = make(format, group, has_zeros, 35, 160)
    restored = torch.full((35, 160), torch.nan, dtype=dtype, device=DEVICE)
    restore_stored(stored, restored)
    # The interpreter cuts numbers off where a GPU rounds them.
    error = 2**-7 if dtype == torch.bfloat16 else 0
    expected = meant.to(dtype)
    assert torch.allclose(restored, expected, rtol=error, atol=0)
    assert torch.equal(stored.restore(dtype), expected)


@pytest.mark.parametrize("format, group, has_zeros", FORMATS)
@pytest.mark.parametrize("num_tokens, num_inputs", [(1, 1184), (20, 160)])
def test_products_are_those_with_restored_weights(
    format: str, group: int, has_zeros: bool, num_tokens: int, num_inputs: int
) -> None:
    stored, meant = make(format, group, has_zeros, 67, num_inputs)
    given, bias = draw(num_tokens, num_inputs, seed=4), draw(67, seed=5)
    given, bias = given.to(DEVICE), bias.to(DEVICE)
    for own in (None, bias):
        output = multiply(given, stored, own)
        expected = linear(given, meant, own)
        assert torch.allclose(output, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("num_tokens", [3, 16, 33, 64, 200])
def test_tokens_of_16_bits_are_a_part_of_wider_rows(num_tokens: int) -> None:
    stored, meant = make("int4", 64, True, 64, 256)
    wide = draw(num_tokens, 2 * 256, seed=4).to(DEVICE, torch.bfloat16)
    given = wide[:, 256:]
    output = multiply(given, stored, None)
    expected = given.float() @ meant.bfloat16().float().T
    assert output.dtype == torch.bfloat16
    assert torch.allclose(output.float(), expected, rtol=1e-2, atol=1e-1)


def test_a_token_has_the_same_numbers_in_all_small_batches() -> None:
    stored, _ = make("fp8", 128, False, 40, 1100)
    given = draw(5, 1100).to(DEVICE, torch.bfloat16)
    together = multiply(given, stored, None)
    alone = [multiply(row[None], stored, None) for row in given]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("num_outputs, num_inputs", [(67, 1184), (300, 160)])
def test_products_of_plain_weights(num_outputs: int, num_inputs: int) -> None:
    weight = draw(num_outputs, num_inputs).to(DEVICE, torch.bfloat16)
    given = draw(16, num_inputs, seed=4).to(DEVICE, torch.bfloat16)
    bias = draw(num_outputs, seed=5).to(DEVICE, torch.bfloat16)
    splits = make_splits(num_outputs, NUM_CORES, DEVICE)
    for own in (None, bias):
        output = multiply_plain(given, weight, own, splits)
        expected = linear(
            given.float(), weight.float(), None if own is None else own.float()
        )
        assert (output.float() - expected).norm() < 1e-2 * expected.norm()
    alone = [multiply_plain(row[None], weight, bias, splits) for row in given[:3]]
    assert torch.equal(torch.cat(alone), output[:3])


@pytest.mark.parametrize("num_inputs", [1184, 160])
def test_half_of_the_outputs_are_gates_of_the_others(num_inputs: int) -> None:
    """With splits, and without them."""
    stored, meant = make("int4", 32, True, 134, num_inputs)
    given, bias = draw(3, num_inputs, seed=4).to(DEVICE), draw(134, seed=5).to(DEVICE)
    splits = make_splits(134, NUM_CORES, DEVICE)
    gates, numbers = linear(given, meant, bias).chunk(2, dim=1)
    expected = silu(0.5 * gates) * numbers
    own = Gates("silu", 0.5)
    for output in (
        multiply_stored(given, stored, bias, splits, own),
        multiply_plain(given, meant, bias, splits, own),
    ):
        assert torch.allclose(output, expected, rtol=1e-4, atol=1e-3)


def test_inputs_may_have_another_order() -> None:
    stored, meant = make("int4", 32, True, 20, 96)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(0))
    stored = replace(stored, order=order.to(DEVICE, torch.int32))
    given = draw(2, 96).to(DEVICE)
    restored = torch.empty(20, 96, device=DEVICE)
    restore_stored(stored, restored)
    assert torch.equal(restored[:, order], meant)
    assert torch.equal(restored, stored.restore(torch.float32))
    output = multiply(given, stored, None)
    assert torch.allclose(output, linear(given, restored), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format, group, has_zeros", FORMATS)
def test_some_inputs_are_taken(format: str, group: int, has_zeros: bool) -> None:
    stored, meant = make(format, group, has_zeros, 5, 384)
    # Cuts between groups, and in the middle of large ones.
    for kept in range(192), range(192, 384), range(32, 300):
        part = stored.take_inputs(kept)
        assert part.shape == (5, len(kept))
        assert torch.equal(part.restore(torch.float32), meant[:, [*kept]])


def test_some_inputs_cannot_be_taken() -> None:
    stored, _ = make("int4", 64, False, 5, 256)
    with pytest.raises(NotStored, match="groups of 16 inputs"):
        stored.take_inputs(range(48, 128))
    ordered = replace(stored, order=torch.arange(256, device=DEVICE).int())
    with pytest.raises(NotStored, match="another order"):
        ordered.take_inputs(range(64))


def test_products_of_one_input_are_joined_and_put_in_order() -> None:
    one, first = make("int4", 64, True, 5, 128)
    other, second = make("int4", 64, True, 4, 128)
    order = torch.tensor([8, 0, 3, 4, 5, 1, 2, 6, 7])
    joined = join([one, other]).take(order.to(DEVICE))
    assert torch.equal(joined.restore(torch.float32), torch.cat((first, second))[order])
    for different in make("int4", 64, False, 4, 128), make("int4", 32, True, 4, 128):
        with pytest.raises(NotStored, match="different formats"):
            join([one, different[0]])


@pytest.mark.parametrize("format, error", [("int8", 0.01), ("fp8", 0.03)])
@pytest.mark.parametrize("num_inputs", [40, 200])
def test_weights_are_quantised(format: str, error: float, num_inputs: int) -> None:
    weight = draw(6, num_inputs).bfloat16()
    weight[2] = 0
    restored = quantise(weight, format).restore(torch.float32)
    assert (restored - weight).norm() < error * weight.norm()
    assert not restored[2].any()


def test_groups_that_the_kernels_do_not_read_are_refused() -> None:
    codes = torch.zeros(2, 96, dtype=torch.uint8)
    with pytest.raises(NotStored, match="groups of 48 inputs"):
        store(codes, torch.ones(2, 2), format="int4", group=48)
    with pytest.raises(NotStored, match="fit no groups"):
        store(codes, torch.ones(2, 2), format="int4", group=32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("format, group, has_zeros", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 16, 17, 64, 100])
def test_products_of_large_models(
    format: str, group: int, has_zeros: bool, num_tokens: int
) -> None:
    """The sizes of Llama-3.1-8B's second feed-forward product."""
    stored, _ = make(format, group, has_zeros, 4096, 14336)
    given = draw(num_tokens, 14336, seed=4).to(DEVICE, torch.bfloat16)
    restored = torch.empty(4096, 14336, dtype=torch.bfloat16, device=DEVICE)
    restore_stored(stored, restored)
    assert torch.equal(restored, stored.restore(torch.bfloat16))
    output = multiply(given, stored, None).float()
    expected = given.float() @ restored.float().T
    assert (output - expected).norm() < 1e-2 * expected.norm()
