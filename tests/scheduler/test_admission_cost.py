"""Prompts that are cached cost the budget nothing, and the loop little."""

from __future__ import annotations

import pytest

from trioserve.scheduler import Scheduler, Sequence
import trioserve.scheduler.generation.sequence
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams

PROMPT = tuple(range(8000))


def make_scheduler() -> Scheduler:
    return Scheduler(
        num_blocks=2000,
        block_size=16,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        max_model_len=16_000,
    )


def make_sequence(number: int, prompt: tuple[int, ...] = PROMPT) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(number),
        arrival=number,
        seed=number,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=2),
    )


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
    # Nine of 7,984 cached tokens are more than 65,536.
    assert run_all(scheduler, device)[:3] == [9, 9, 2]


def test_prepared_sequences_are_hashed_by_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, device = make_scheduler(), FakeDevice(block_size=16)
    sequences = [make_sequence(number) for number in range(3)]
    other = make_sequence(3, PROMPT[8:])
    expected = [make_sequence(9).block_hash(i, 16) for i in range(500)]
    num_hashed = 0
    blake2b = trioserve.scheduler.generation.sequence.blake2b

    def count(*args: object, **kwargs: object) -> object:
        nonlocal num_hashed
        num_hashed += 1
        return blake2b(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(trioserve.scheduler.generation.sequence, "blake2b", count)
    scheduler.prepare([*sequences, other])
    # Once for each prompt, not for each sequence.
    assert num_hashed == 500 + 499
    for sequence in (*sequences, other):
        scheduler.add(sequence)
    run_all(scheduler, device)
    assert num_hashed == 500 + 499
    assert [sequences[2].block_hash(i, 16) for i in range(500)] == expected


def test_nothing_is_prepared_for_a_cache_that_is_off() -> None:
    scheduler = Scheduler(
        num_blocks=2000,
        block_size=16,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        max_model_len=16_000,
        prefix_caching=False,
    )
    sequence = make_sequence(0)
    scheduler.prepare([sequence])
    assert sequence._block_hashes == []
