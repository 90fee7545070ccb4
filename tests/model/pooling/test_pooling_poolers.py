"""Pooled vectors are the same as from sentence-transformers' Pooling."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
import pytest
import torch

from trioserve.config import PoolingConfig
from trioserve.types.pooling import PoolingInput
from trioserve.types.sentence import PoolingMode, SentenceFolder

# Makes a Bench of conftest.py.
Make = Callable[..., Any]
Floats = NDArray[np.float32]
HIDDEN_SIZE = 8
VOCAB_SIZE = 50

MODES: list[PoolingMode] = [
    *("cls", "lasttoken", "max"),
    *("mean", "mean_sqrt_len_tokens", "weightedmean"),
]


def pool_with_oracle(
    table: Any, texts: list[list[int]], modes: Any, prompt_length: int = 0
) -> Any:
    """Pool texts as sentence-transformers does, padded to a rectangle."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    mask = torch.tensor(
        [[int(i < len(text)) for i in range(longest)] for text in texts]
    )
    pooling = Pooling(HIDDEN_SIZE, modes, include_prompt=not prompt_length)
    features = {
        "token_embeddings": table.states[padded],
        "attention_mask": mask,
        "prompt_length": prompt_length,
    }
    pooled: Floats = pooling(features)["sentence_embedding"].float().numpy()
    return pooled


def draw_texts(*lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]


def leave_out_prompt(text: list[int], length: int) -> PoolingInput:
    # A text that was cut may be shorter than the prompt.
    left_out = tuple(range(min(length, len(text))))
    return PoolingInput(token_ids=array("i", text), left_out=left_out)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_mixed_lengths_is_pooled(
    bench: Make, table: Any, mode: PoolingMode
) -> None:
    model = bench(SentenceFolder(modes=(mode,)))
    texts = draw_texts(1, 9, 3, 3, 200, 64, 65)
    expected = pool_with_oracle(table, texts, mode)
    np.testing.assert_allclose(model.run(*texts), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_left_out_tokens_are_not_pooled(
    bench: Make, table: Any, mode: PoolingMode
) -> None:
    model = bench(SentenceFolder(modes=(mode,)))
    texts = draw_texts(4, 9, 7)
    expected = pool_with_oracle(table, texts, mode, prompt_length=3)
    inputs = [leave_out_prompt(text, 3) for text in texts]
    np.testing.assert_allclose(model.run(*inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "max"])
def test_a_text_that_is_left_out_whole_is_as_in_sentence_transformers(
    bench: Make, table: Any, mode: PoolingMode
) -> None:
    model = bench(SentenceFolder(modes=(mode,)))
    texts = draw_texts(3, 5, 2)
    expected = pool_with_oracle(table, texts, mode, prompt_length=3)
    inputs = [leave_out_prompt(text, 3) for text in texts]
    np.testing.assert_allclose(model.run(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_the_largest_of_nothing_is_a_finite_vector(bench: Make) -> None:
    model = bench(SentenceFolder(modes=("max",)))
    [vector] = model.run(leave_out_prompt([4, 5], 2))
    assert vector.tolist() == [0.0] * HIDDEN_SIZE


def test_several_modes_are_put_side_by_side(bench: Make, table: Any) -> None:
    model = bench(SentenceFolder(modes=tuple(MODES)))
    texts = draw_texts(5, 2)
    expected = pool_with_oracle(table, texts, tuple(MODES))
    assert model.runner.info.num_outputs == len(MODES) * HIDDEN_SIZE
    np.testing.assert_allclose(model.run(*texts), expected, rtol=1e-5, atol=1e-6)


def test_long_texts_are_summed_in_float32(bench: Make, table: Any) -> None:
    """In bfloat16, a sum of thousands of numbers would lose the last ones."""
    table.states = table.states.bfloat16().abs()
    model = bench(SentenceFolder(modes=("mean",)))
    [text] = draw_texts(5000)
    expected = table.states[text].double().mean(0)
    np.testing.assert_allclose(model.run(text)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "config, is_causal, mode",
    [
        ("auto", False, "mean"),
        ("auto", True, "lasttoken"),
        ("cls", True, "cls"),
        ("mean", True, "mean"),
        ("last", False, "lasttoken"),
    ],
)
def test_without_files_the_option_or_the_kind_of_model_decides(
    bench: Make, table: Any, config: Any, is_causal: bool, mode: str
) -> None:
    options = PoolingConfig(pooling=config)
    model = bench(None, options, is_causal=is_causal)
    texts = draw_texts(4, 6)
    expected = torch.from_numpy(pool_with_oracle(table, texts, mode))
    normalized = torch.nn.functional.normalize(expected)
    np.testing.assert_allclose(model.run(*texts), normalized, rtol=1e-5, atol=1e-6)


def test_the_option_goes_before_the_files(bench: Make, table: Any) -> None:
    options = PoolingConfig(pooling="last")
    model = bench(SentenceFolder(modes=("cls", "mean")), options)
    [vector] = model.run([3, 9])
    np.testing.assert_array_equal(vector, table.states[9])
