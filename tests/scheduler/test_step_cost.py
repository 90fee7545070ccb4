"""The cost of steps is learned only from steps."""

from __future__ import annotations

import math
import random

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.scheduler import step_cost
from trioserve.scheduler.step_cost import StepCost, StepSize

# Seconds of SmolLM2-135M on one core: fixed, row, token, context, pair.
COEFFICIENTS = (0.045, 0.0005, 0.00075, 6e-6, 4.2e-7)


def make_size(*rows: tuple[int, int]) -> StepSize:
    """Return the size of a step with rows of (context, tokens)."""
    size = StepSize()
    for context, num_tokens in rows:
        size.add_row(context, num_tokens)
    return size


def true_seconds(size: StepSize, factor: float = 1.0) -> float:
    fixed, row, token, context, pair = COEFFICIENTS
    return factor * (
        fixed
        + row * size.num_rows
        + token * size.num_tokens
        + context * size.num_context
        + pair * size.num_pairs
    )


def list_sizes(chance: random.Random, count: int = 200) -> list[StepSize]:
    """Return steps like a server's: decoding rows, and in half of them a chunk."""
    sizes = []
    for _ in range(count):
        rows = [(chance.randint(1, 4000), 1) for _ in range(chance.randint(1, 40))]
        if chance.random() < 0.5:
            rows.append((chance.randint(0, 7000), chance.randint(16, 512)))
        sizes.append(make_size(*rows))
    return sizes


def test_decoding_rows_are_rows_of_one_token() -> None:
    size = StepSize()
    size.add_decoding(3, 10 + 20 + 30)
    assert size == make_size((10, 1), (20, 1), (30, 1))


def test_a_cost_that_follows_the_formula_is_found() -> None:
    chance = random.Random(0)
    cost = StepCost()
    for size in list_sizes(chance):
        cost.learn(size, true_seconds(size))
    for size in list_sizes(chance):
        assert cost.predict(size) == pytest.approx(true_seconds(size), rel=0.05)


def test_noise_and_delayed_steps_change_little() -> None:
    """On a shared CPU, times vary by a tenth, and one step in twenty takes 10 x."""
    chance = random.Random(1)
    cost = StepCost()
    for size in list_sizes(chance):
        factor = math.exp(chance.gauss(0, 0.1)) * (10 if chance.random() < 0.05 else 1)
        cost.learn(size, true_seconds(size, factor))
    for size in list_sizes(chance):
        assert cost.predict(size) == pytest.approx(true_seconds(size), rel=0.25)


def test_a_machine_that_gets_slower_is_known_after_a_few_steps() -> None:
    """Its last prompts are long ago, and were fast."""
    chance = random.Random(2)
    cost = StepCost()
    for size in list_sizes(chance):
        cost.learn(size, true_seconds(size))
    for number in range(200):
        size = make_size(*[(number, 1)] * 8)
        cost.learn(size, true_seconds(size, 3.0))
    for _ in range(5):
        size = make_size((200, 1), (1000, 64))
        cost.learn(size, true_seconds(size, 3.0))
    chunk = make_size((200, 1), (1000, 128))
    assert cost.predict(chunk) == pytest.approx(true_seconds(chunk, 3.0), rel=0.25)


def test_a_few_slow_steps_are_followed_by_more() -> None:
    """While another program computes, chunks must be short enough."""
    chance = random.Random(5)
    cost = StepCost()
    for size in list_sizes(chance):
        cost.learn(size, true_seconds(size))
    for size in list_sizes(chance, 8):
        cost.learn(size, true_seconds(size, 2.5))
    chunk = make_size((200, 1), (1000, 128))
    assert cost.predict(chunk) == pytest.approx(true_seconds(chunk, 2.5), rel=0.15)
    # The slow steps are forgotten when they are over.
    for size in list_sizes(chance, 30):
        cost.learn(size, true_seconds(size))
    assert cost.predict(chunk) == pytest.approx(true_seconds(chunk), rel=0.15)


def test_thousands_of_equal_steps_do_not_change_the_cost_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(3)
    cost = StepCost()
    for size in list_sizes(chance):
        cost.learn(size, true_seconds(size))
    # So many that the weights of the first steps become zero.
    monkeypatch.setattr(step_cost, "_KEPT", 0.9)
    for number in range(7200):
        size = make_size((number % 1000, 1))
        cost.learn(size, true_seconds(size))
    chunk = make_size((4000, 256))
    assert cost.predict(chunk) == pytest.approx(true_seconds(chunk), rel=0.1)


def test_before_a_measurement_no_chunk_is_known_to_be_short_enough() -> None:
    assert StepCost().count_tokens(0, 100.0, StepSize()) == 0


def test_a_chunk_may_be_twice_the_largest_step_that_was_measured() -> None:
    cost = StepCost()
    cost.learn(make_size((0, 16)), 0.001)
    assert cost.count_tokens(0, 100.0, StepSize()) == 32
    # After 1,000 tokens of context, 32 tokens are 32,512 pairs; 128 were measured.
    assert cost.count_tokens(1000, 100.0, StepSize()) == 0
    assert cost.count_tokens(0, 100.0, make_size((0, 12))) == 20
    assert cost.count_tokens(0, 100.0, make_size((0, 40))) == 0


def test_steps_without_time_or_rows_are_not_learned() -> None:
    cost = StepCost()
    cost.learn(make_size((0, 16)), 0.0)
    cost.learn(StepSize(), 1.0)
    assert cost.predict(make_size((0, 16))) == 0.0


@settings(max_examples=examples(100))
@given(st.integers(0, 8000), st.floats(0.001, 2.0))
def test_a_chunk_has_the_most_tokens_that_fit(context: int, seconds: float) -> None:
    cost = StepCost()
    for size in list_sizes(random.Random(4), 100):
        cost.learn(size, true_seconds(size))
    cost.learn(make_size((0, 4096)), true_seconds(make_size((0, 4096))))
    num_tokens = cost.count_tokens(context, seconds, StepSize())
    assert num_tokens >= 0
    if num_tokens > 0:
        assert cost.predict_row(context, num_tokens) <= seconds * 1.0001
    # Otherwise the largest measured step is the bound.
    if num_tokens < 512:
        assert cost.predict_row(context, num_tokens + 1) > seconds


def test_rates_follow_three_slow_steps_and_no_fewer() -> None:
    """One slow step must not refuse requests."""
    chance = random.Random(6)
    cost = StepCost()
    for size in list_sizes(chance):
        cost.learn(size, true_seconds(size))
    usual = cost.list_rates().predict_decoding(4, 400)
    ratios = []
    for factor in (3.0, 3.0, 3.0, 3.0, 1.0):
        [size] = list_sizes(chance, 1)
        cost.learn(size, true_seconds(size, factor))
        ratios.append(cost.list_rates().predict_decoding(4, 400) / usual)
    assert ratios == pytest.approx([1.0, 1.0, 3.0, 3.0, 1.0], rel=0.25)


def test_rates_trust_no_prompt_that_was_not_measured() -> None:
    cost = StepCost()
    for _ in range(200):
        size = StepSize()
        size.add_decoding(4, 400)
        cost.learn(size, 0.02)
    usual = cost.list_rates().predict_decoding(4, 400)
    assert usual == pytest.approx(0.02, rel=0.05)
    # Nothing tells the cost of a token from the cost of a row.
    assert cost.list_rates().predict_prompt(4000) < 0.02
    assert cost.list_rates().trusted_token == 0
    for _ in range(50):
        size = StepSize()
        size.add_row(0, 200)
        cost.learn(size, 0.2)
    assert cost.list_rates().predict_prompt(4000) > 2.0
