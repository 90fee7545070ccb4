"""The cost of a step depends on running sequences, not on waiting ones or output."""

from __future__ import annotations

import sys

import pytest

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams


def count_calls_per_step(
    *, num_running: int, num_waiting: int, num_output: int = 0
) -> float:
    """Return the calls of functions, of Python and C, in one step of a steady state."""
    scheduler = Scheduler(
        num_blocks=num_running * (8192 // 16),
        block_size=16,
        max_num_seqs=num_running,
        max_num_batched_tokens=512,
        max_model_len=8192,
    )
    device = FakeDevice()
    for number in range(num_running + num_waiting):
        scheduler.add(
            Sequence(
                sequence_id=SequenceId(number),
                arrival=number,
                seed=number,
                prompt_token_ids=(number, 1, 2),
                sampling=SamplingParams(max_tokens=8000),
            )
        )
    num_calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    def step() -> None:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(plan, device.step(plan))

    for _ in range(2 + num_output):
        step()
    device.plans.clear()
    # In 16 steps each sequence begins one block.
    sys.setprofile(count)
    for _ in range(16):
        step()
    sys.setprofile(None)
    return num_calls / 16


def test_a_step_costs_the_same_with_10_and_with_10000_waiting() -> None:
    few = count_calls_per_step(num_running=16, num_waiting=10)
    many = count_calls_per_step(num_running=16, num_waiting=10_000)
    assert many == pytest.approx(few, rel=0.01)


@pytest.mark.slow
def test_a_step_costs_the_same_after_10_and_after_2000_output_tokens() -> None:
    short = count_calls_per_step(num_running=4, num_waiting=0, num_output=10)
    long = count_calls_per_step(num_running=4, num_waiting=0, num_output=2000)
    assert long == pytest.approx(short, rel=0.01)
