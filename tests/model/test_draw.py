"""Tokens are drawn with noise of their own, from the right distribution."""

from __future__ import annotations

import math

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import torch
from torch import Tensor

from trioserve.model.sampling.draw import draw_from_best, drop_unlikely, make_key
from trioserve.model.step.scans import Scans, make_noise


def make_keys(num_rows: int) -> Tensor:
    return torch.tensor([make_key(7, index) for index in range(num_rows)])


def find_noise(key: int, token_id: int) -> float:
    """Return the noise of a token, from whole numbers."""
    bits = token_id ^ key % 2**32
    bits = (bits ^ bits >> 16) * 0x21F0AAAD % 2**32
    bits ^= key // 2**32 % 2**32
    bits = (bits ^ bits >> 15) * 0xD35A2D97 % 2**32
    bits = (bits ^ bits >> 15) >> 1
    return -math.log(-math.log1p(-min((bits + 0.5) / 2**31, 1 - 2**-24)))


def make_logits(num_rows: int, vocab_size: int, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return scale * torch.randn((num_rows, vocab_size), generator=generator)


def draw_simply(logits: Tensor, key: int, top_k: int, top_p: float) -> int:
    """Draw for one row by a full sort and a loop."""
    probabilities, token_ids = logits.double().softmax(-1).sort(descending=True)
    kept = probabilities[:top_k] / probabilities[:top_k].sum()
    before = kept.cumsum(0) - kept
    kept_ids = token_ids[:top_k][before < top_p].tolist()
    return max(kept_ids, key=lambda i: float(logits[i]) + find_noise(key, i))


@pytest.mark.parametrize(
    ("top_k", "top_p", "scale"),
    [
        *((1, 0.9, 2.0), (5, 1.0, 0.01), (5, 0.3, 2.0), (300, 0.9, 0.01)),
        *((300, 0.9, 2.0), (300, 1e-6, 0.01), (1000, 1.0, 2.0), (1000, 0.9, 0.01)),
        (1000, 0.9, 2.0),
    ],
)
def test_draw_from_best_equals_a_sort_and_a_loop(
    top_k: int, top_p: float, scale: float, scans: Scans
) -> None:
    """This also holds if the first candidates do not reach top_p."""
    logits = make_logits(5, 1000, scale)
    keys = make_keys(5)
    drawn = draw_from_best(
        logits, keys, torch.full((5,), top_k), torch.full((5,), top_p), scans
    )
    assert drawn.tolist() == [
        draw_simply(row, key, top_k, top_p) for row, key in zip(logits, keys.tolist())
    ]


def test_rows_of_draw_from_best_do_not_see_each_other(scans: Scans) -> None:
    logits = make_logits(6, 5000, 0.5)
    keys = make_keys(6)
    top_k = torch.tensor([5000, 3, 5000, 700, 5000, 256])
    top_p = torch.tensor([0.99, 0.5, 0.01, 0.9, 1.0, 1.0])
    together = draw_from_best(logits, keys, top_k, top_p, scans)
    alone = [
        draw_from_best(*(x[i, None] for x in (logits, keys, top_k, top_p)), scans=scans)
        for i in range(6)
    ]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize(
    ("vocab_size", "scale"),
    [(1, 2.0), (31, 0.01), (128, 2.0), (129, 0.01), (1000, 0.01), (1000, 2.0)],
)
def test_the_largest_sum_of_logit_and_noise_wins(
    vocab_size: int, scale: float, scans: Scans
) -> None:
    logits, keys = make_logits(16, vocab_size, scale), make_keys(16)
    expected = [
        draw_simply(row, key, vocab_size, 1.0)
        for row, key in zip(logits, keys.tolist())
    ]
    assert scans.race(logits, keys).tolist() == expected
    # The noise goes with the ids of tokens, not with their places.
    token_ids = torch.arange(vocab_size).flip(0).expand(16, -1)
    places = scans.race(logits.flip(1), keys, token_ids)
    assert token_ids.gather(1, places[:, None])[:, 0].tolist() == expected


def test_a_token_that_is_excluded_never_wins(scans: Scans) -> None:
    logits = make_logits(200, 300)
    logits[:, 0] = logits[:, -290:] = -math.inf
    assert (scans.race(logits, make_keys(200)) - 1).max() < 9


def test_unlikely_tokens_are_drawn_as_often_as_they_should_be(scans: Scans) -> None:
    """Each of 4,096 tokens has 1/81,920, and the others together have 19/20."""
    logits = torch.zeros(1, 5000)
    logits[0, 4096:] = math.log(19 * 4096 / 904)
    drawn = scans.race(logits.expand(2000, -1).contiguous(), make_keys(2000))
    # 100 are expected; five standard deviations are 49.
    assert 51 < int((drawn < 4096).sum()) < 149
    assert len(drawn[drawn < 4096].unique()) > 45


def test_winners_have_the_distribution_of_the_softmax(scans: Scans) -> None:
    logits, num_draws = make_logits(1, 40, 1.0), 4000
    drawn = scans.race(logits.expand(num_draws, -1).contiguous(), make_keys(num_draws))
    expected = num_draws * logits[0].double().softmax(-1)
    counts = torch.bincount(drawn, minlength=40)
    # The 99.9th percentile of the distribution with 39 degrees of freedom.
    assert float(((counts - expected) ** 2 / expected).sum()) < 72.1


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_logits_that_differ_a_little_seldom_change_a_token(
    top_p: float, scans: Scans
) -> None:
    """Batches of other sizes change logits in float32 by about as much."""
    logits, keys = make_logits(150, 5000), make_keys(150)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    first, second = (
        (
            draw_from_best(
                each, keys, torch.full((150,), 5000), torch.full((150,), top_p), scans
            )
            if top_p < 1.0
            else scans.race(each, keys)
        )
        for each in (logits, logits + 1e-5 * noise)
    )
    assert int((first != second).sum()) == 0


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_draw_some_token(broken: float, scans: Scans) -> None:
    logits = make_logits(2, 700)
    logits[0] = broken
    logits[1, 3] = broken
    keys = make_keys(2)
    for drawn in (
        scans.race(logits, keys),
        draw_from_best(
            logits, keys, torch.tensor([5, 700]), torch.tensor([0.9, 0.9]), scans
        ),
    ):
        assert all(0 <= token_id < 700 for token_id in drawn.tolist())


def test_drop_unlikely() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 3).log()
    kept = drop_unlikely(logits, torch.tensor([0.0, 0.4, 1.0])) > -math.inf
    assert kept.sum(-1).tolist() == [4, 2, 1]
    # A token as likely as the limit stays.
    logits = torch.tensor([[0.0, 0.5, 0.25, 0.0]]).log()
    kept = drop_unlikely(logits, torch.tensor([0.5])) > -math.inf
    assert kept.tolist() == [[False, True, True, False]]


@given(st.integers(-(2**63), 2**63 + 128), st.integers(0, 2**31))
@settings(max_examples=examples(50), derandomize=True)
def test_a_key_has_64_bits_and_is_repeatable(seed: int, index: int) -> None:
    key = make_key(seed, index)
    assert -(2**63) <= key < 2**63
    assert key == make_key(seed, index)
    assert key != make_key(seed, index + 1)
    assert key != make_key(seed + 1, index)


@pytest.mark.parametrize(
    "seed, index, noises",
    [
        (0, 0, [0.977391, -1.566986, -0.717567, 0.514828]),
        (7, 1, [1.28444, -0.588263, -0.274001, 2.594652]),
        (-1, 300, [-0.153852, 0.060121, 0.90128, 1.008695]),
        (2**64 + 7, 1, [1.28444, -0.588263, -0.274001, 2.594652]),
    ],
)
def test_a_seed_means_the_same_noise_on_every_machine(
    seed: int, index: int, noises: list[float]
) -> None:
    """These numbers are fixed, so a seed gives the same text after code changes."""
    key, token_ids = make_key(seed, index), [0, 1, 49_151, 2**20]
    found = make_noise(torch.tensor(key), torch.tensor(token_ids))
    assert found.tolist() == pytest.approx(noises, rel=1e-5)
    assert [find_noise(key, i) for i in token_ids] == pytest.approx(noises, rel=1e-5)


@pytest.mark.parametrize("distance", [1, 2, 128, 65_536])
def test_noise_of_two_tokens_is_independent(distance: int) -> None:
    keys = make_keys(4096)
    pairs = make_noise(keys[:, None], torch.tensor([[3, 3 + distance]]))
    # Each of 16 parts has a quarter of a quarter.
    halves = torch.tensor([-math.log(-math.log(share)) for share in (0.25, 0.5, 0.75)])
    parts = torch.bucketize(pairs.contiguous(), halves)
    counts = torch.bincount(4 * parts[:, 0] + parts[:, 1], minlength=16)
    # The 99.9th percentile of the distribution with 15 degrees of freedom.
    assert float(((counts - 256.0) ** 2 / 256).sum()) < 37.7
