"""Chunks of prompts by spans of tokens compute what they compute token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..chance import make_numbers
from ..test_states import DELTA, MAMBA2, Layer, Row, Sizes
from .test_triton_states import Runner

# Key heads of two value heads, with fewer numbers than a product has.
TINY = {"key_heads": 1, "group": 2, "key_dim": 9, "value_dim": 5, "num_taps": 2}


def make(kind: int, num_tokens: int) -> tuple[Layer, Tensor]:
    sizes = Sizes(kind, **TINY)
    layer = Layer(sizes, 3, has_bias=True)
    return layer, make_numbers(9, 2, num_tokens, sum(sizes.parts))


@pytest.mark.parametrize("kind", [DELTA, MAMBA2])
def test_spans_compute_the_formula_however_a_text_is_cut(kind: int) -> None:
    """Beside decodes and another chunk, behind a single token, and if the last token comes again.

    One row has parts of three spans, and one begins behind the middle of a span.
    """
    layer, x = make(kind, 135)
    runner = Runner(layer, by_spans=True)
    outputs = []
    for begin, end in ((0, 1), (1, 3), (3, 40), (40, 65), (65, 66), (66, 135)):
        both = runner.run(x, Row(1, begin, end, is_held=True), Row(0, begin, end))
        (again,) = runner.run(x, Row(1, end - 1, end))
        torch.testing.assert_close(both[0][-1:], again, rtol=1e-4, atol=1e-4)
        outputs.append(both)
    for text, parts in zip((x[1], x[0]), zip(*outputs)):
        expected = layer.compute(text)
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [DELTA, MAMBA2])
def test_numbers_of_16_bits_lose_no_more_than_their_rounding(kind: int) -> None:
    layer, x = make(kind, 70)
    x = x.half()
    (actual,) = Runner(layer, torch.float16, by_spans=True).run(x, Row(1, 0, 70))
    assert actual.dtype == torch.float16
    expected = layer.compute(x[1].float())
    torch.testing.assert_close(actual.float(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("decay", [0.0, -300.0])
def test_keys_that_are_alike_and_decays_at_their_limits_lose_no_digits(
    decay: float,
) -> None:
    """Powers of the matrix that is inverted have numbers of 18 digits then."""
    layer, x = make(DELTA, 64)
    layer.decay.fill_(decay)
    channels = layer.sizes.num_channels
    # The same keys, and rates of 1.
    layer.taps[:-1] = 0.0
    x[..., : 2 * layer.sizes.num_keys] = x[:, :1, : 2 * layer.sizes.num_keys]
    x[..., channels + layer.sizes.num_values :][..., : layer.sizes.value_heads] = 30.0
    (actual,) = Runner(layer, by_spans=True).run(x, Row(1, 0, 64))
    expected = layer.compute(x[1])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sizes",
    [
        # Qwen3-Next and Granite 4.
        Sizes(DELTA, key_heads=16, group=2, key_dim=128, value_dim=128, num_taps=4),
        Sizes(MAMBA2, key_heads=1, group=48, key_dim=128, value_dim=64, num_taps=4),
    ],
)
def test_prompts_of_real_models(sizes: Sizes, dtype: torch.dtype) -> None:
    layer = Layer(sizes, 3, has_bias=True)
    x = make_numbers(9, 2, 2000, sum(sizes.parts)).to(dtype)
    runner = Runner(layer, dtype, by_spans=True)
    expected, _ = Runner(layer, dtype).run(x, Row(0, 0, 2000), Row(1, 0, 2))
    outputs = []
    for begin, end in ((0, 777), (777, 778), (778, 1900), (1900, 2000)):
        mine, _ = runner.run(x, Row(0, begin, end), Row(1, begin, end))
        outputs.append(mine)
    error = torch.cat(outputs).float() - expected.float()
    assert error.norm() < 2e-2 * expected.float().norm()
