"""Tokens are drawn with one uniform number each, from the right distribution."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st
import pytest
import torch
from torch import Tensor

from trioserve.model.sampling.draw import (
    draw_from_all,
    draw_from_best,
    drop_unlikely,
    make_noise,
)
from trioserve.model.scans import Scans


def make_logits(num_rows: int, vocab_size: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return scale * torch.randn((num_rows, vocab_size), generator=generator)


def draw_simply(logits: Tensor, noise: float, top_k: int, top_p: float) -> int:
    """Draw for one row by a full sort and a loop."""
    probabilities, token_ids = logits.double().softmax(-1).sort(descending=True)
    kept = probabilities[:top_k] / probabilities[:top_k].sum()
    before = kept.cumsum(0) - kept
    kept = kept[before < top_p]
    target, total = noise * float(kept.sum()), 0.0
    for token_id, probability in zip(token_ids.tolist(), kept.tolist()):
        total += probability
        if total > target:
            return int(token_id)
    raise AssertionError("noise is below 1")


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("top_k", [1, 5, 300, 1000])
@pytest.mark.parametrize("scale", [0.01, 2.0])
def test_draw_from_best_equals_a_sort_and_a_loop(
    top_k: int, top_p: float, scale: float, scans: Scans
) -> None:
    """This also holds if the first candidates do not reach top_p."""
    logits = make_logits(8, 1000, scale)
    noise = torch.linspace(0.0, 0.999, 8, dtype=torch.float64)
    drawn = draw_from_best(
        logits, noise, torch.full((8,), top_k), torch.full((8,), top_p), scans
    )
    assert drawn.tolist() == [
        draw_simply(row, u, top_k, top_p) for row, u in zip(logits, noise.tolist())
    ]


def test_rows_of_draw_from_best_do_not_see_each_other(scans: Scans) -> None:
    logits = make_logits(6, 5000, 0.5)
    noise = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    top_k = torch.tensor([5000, 3, 5000, 700, 5000, 256])
    top_p = torch.tensor([0.99, 0.5, 0.01, 0.9, 1.0, 1.0])
    together = draw_from_best(logits, noise, top_k, top_p, scans)
    alone = [
        draw_from_best(
            *(x[i, None] for x in (logits, noise, top_k, top_p)), scans=scans
        )
        for i in range(6)
    ]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
def test_draw_from_all_inverts_the_distribution(vocab_size: int, scans: Scans) -> None:
    logits = make_logits(1, vocab_size).expand(512, -1)
    noise = (torch.arange(512, dtype=torch.float64) + 0.5) / 512
    sums = logits[0].double().softmax(-1).cumsum(0)
    expected = torch.searchsorted(sums, noise, right=True)
    # Rounding to single precision may move a boundary past a number that lies on it.
    assert (draw_from_all(logits, noise, scans) - expected).abs().sum() <= 2


@pytest.mark.parametrize("noise", [0.0, math.nextafter(1.0, 0.0)])
def test_noise_at_the_ends_draws_a_possible_token(noise: float, scans: Scans) -> None:
    logits = make_logits(1, 700)
    logits[0, 0] = logits[0, -300:] = -math.inf
    numbers = torch.tensor([noise], dtype=torch.float64)
    for drawn in (
        draw_from_all(logits, numbers, scans),
        draw_from_best(
            logits, numbers, torch.tensor([700]), torch.tensor([1.0]), scans
        ),
    ):
        assert logits[0, int(drawn)] > -math.inf


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_draw_some_token(broken: float, scans: Scans) -> None:
    logits = make_logits(2, 700)
    logits[0] = broken
    logits[1, 3] = broken
    noise = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for drawn in (
        draw_from_all(logits, noise, scans),
        draw_from_best(
            logits, noise, torch.tensor([5, 700]), torch.tensor([0.9, 0.9]), scans
        ),
    ):
        assert all(0 <= token_id < 700 for token_id in drawn.tolist())


def test_drop_unlikely() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 3).log()
    kept = drop_unlikely(logits, torch.tensor([0.0, 0.4, 1.0])) > -math.inf
    assert kept.sum(-1).tolist() == [4, 2, 1]


@given(st.integers(-(2**63), 2**63 + 128), st.integers(0, 2**31))
@settings(max_examples=50, derandomize=True)
def test_noise_is_in_range_and_repeatable(seed: int, index: int) -> None:
    noise = make_noise(seed, index)
    assert 0.0 <= noise < 1.0
    assert noise == make_noise(seed, index)
    assert noise != make_noise(seed, index + 1)
    assert noise != make_noise(seed + 1, index)


def test_noise_is_uniform() -> None:
    counts = torch.histc(
        torch.tensor([make_noise(seed, 3) for seed in range(4000)]), 10, 0.0, 1.0
    )
    # 400 are expected; five standard deviations are 95.
    assert counts.min() > 305 and counts.max() < 495


@pytest.mark.parametrize(
    "seed, index, noise",
    [
        (0, 0, 0.0564663990004608),
        (7, 1, 0.8033384902111143),
        (-1, 300, 0.14653530971413664),
        (2**64 + 7, 1, 0.8033384902111143),
    ],
)
def test_a_seed_means_the_same_noise_on_every_machine(
    seed: int, index: int, noise: float
) -> None:
    """These numbers are fixed, so a seed gives the same text after code changes."""
    assert make_noise(seed, index) == noise


def test_drop_unlikely_keeps_tokens_as_likely_as_the_limit() -> None:
    logits = torch.tensor([[0.0, 0.5, 0.25, 0.0]]).log()
    kept = drop_unlikely(logits, torch.tensor([0.5])) > -math.inf
    assert kept.tolist() == [[False, True, True, False]]
