"""Cached prompts cost the budget nothing, and the loop little, as do waiting requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
import hashlib
import sys
from typing import Any

import pytest
import scheduling
from scheduling import Loop

from trioserve.scheduler.generation import blocks
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.testing.fake_device import FakeDevice

PROMPT = tuple(range(8000))


make_scheduler = partial(
    scheduling.make_scheduler,
    num_blocks=2000,
    block_size=16,
    max_num_seqs=32,
    max_num_batched_tokens=512,
    max_model_len=16_000,
)


def make_sequence(number: int, prompt: tuple[int, ...] = PROMPT) -> Sequence:
    return scheduling.make_sequence(number, prompt_token_ids=prompt, max_tokens=2)


def run_all(scheduler: Scheduler, device: FakeDevice) -> list[int]:
    """Return how many sequences each step admitted."""
    num_started = []
    while plan := scheduler.schedule():
        num_started.append(len(plan.starts))
        scheduler.update(plan, device.step(plan))
    scheduler.check()
    return num_started


def test_one_step_looks_up_a_bounded_number_of_cached_tokens() -> None:
    scheduler, device = make_scheduler(), FakeDevice(block_size=16)
    scheduler.add(make_sequence(0))
    run_all(scheduler, device)
    for number in range(1, 21):
        scheduler.add(make_sequence(number))
    # Nine prompts with 7,984 cached tokens each exceed 65,536 tokens.
    assert run_all(scheduler, device)[:3] == [9, 9, 2]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Collect the length of each content that a sequence hashes."""
    lengths: list[int] = []

    def count(content: bytes, **options: Any) -> Any:
        lengths.append(len(content))
        return hashlib.blake2b(content, **options)

    monkeypatch.setattr(blocks, "blake2b", count)
    yield lengths


def test_prepared_sequences_are_hashed_by_no_step(hashed: list[int]) -> None:
    scheduler, device = make_scheduler(), FakeDevice(block_size=16)
    sequences = [make_sequence(number) for number in range(3)]
    other = make_sequence(3, PROMPT[8:])
    expected = [make_sequence(9).hashes.get(i, 16) for i in range(500)]
    hashed.clear()
    scheduler.prepare([*sequences, other])
    # Once for each prompt, not for each sequence.
    assert len(hashed) == 500 + 499
    for sequence in (*sequences, other):
        scheduler.add(sequence)
    run_all(scheduler, device)
    assert len(hashed) == 500 + 499
    assert [sequences[2].hashes.get(i, 16) for i in range(500)] == expected


def test_nothing_is_prepared_for_a_cache_that_is_off(hashed: list[int]) -> None:
    scheduler = make_scheduler(prefix_caching=False)
    sequence = make_sequence(0)
    hashed.clear()
    scheduler.prepare([sequence])
    assert hashed == []


def count_calls_per_step(num_waiting: int) -> float:
    """Return the calls of functions, of Python and C, in one step of a steady state."""
    scheduler = make_scheduler(num_blocks=16 * 512, max_num_seqs=16, max_model_len=8192)
    loop = Loop(scheduler, FakeDevice(), checks=False)
    for number in range(16 + num_waiting):
        loop.add(scheduling.make_sequence(number, 3, max_tokens=8000))
    num_calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    loop.step()
    loop.step()
    # In 16 steps each sequence begins one block.
    sys.setprofile(count)
    for _ in range(16):
        loop.step()
    sys.setprofile(None)
    return num_calls / 16


def test_a_step_costs_the_same_with_10_and_with_2000_waiting() -> None:
    assert count_calls_per_step(2000) == pytest.approx(
        count_calls_per_step(10), rel=0.01
    )
