"""Pipelines: chunks flow, tokens have time to come back, sequences take turns."""

from __future__ import annotations

from functools import partial

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import scheduling
from scheduling import Loop, count_to

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.types.plan import StepPlan


def make_scheduler(num_stages: int, **changes: int) -> Scheduler:
    options = {"num_blocks": 256, "max_num_seqs": 16, "max_model_len": 256}
    return scheduling.make_scheduler(num_stages=num_stages, **(options | changes))


def open_loop(num_stages: int, **changes: int) -> Loop:
    """Return a loop that keeps each stage busy, and has one more step ready."""
    return Loop(make_scheduler(num_stages, **changes), depth=num_stages + 1)


make_sequence = partial(scheduling.make_sequence, prompt_len=2)


def list_slots(plan: StepPlan) -> list[int]:
    return [row.slot for row in plan.rows]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_a_lone_sequence_waits_for_its_token_instead_of_a_stage(
    num_stages: int,
) -> None:
    pipeline = open_loop(num_stages)
    pipeline.scheduler.add(make_sequence(1))
    assert len(pipeline.fill()) == 1
    # Nothing else can be planned, so the stages are free for a new sequence.
    assert pipeline.scheduler.schedule() is None
    pipeline.drain_one()
    assert len(pipeline.fill()) == 1
    assert pipeline.run() == count_to(8, 1)


def test_a_placeholder_is_planned_once_its_token_has_had_time_to_come_back() -> None:
    scheduler = make_scheduler(3)
    scheduler.add(make_sequence(1))
    # A prompt of many chunks keeps the steps coming.
    scheduler.add(make_sequence(2, prompt_len=200))
    pipeline = Loop(scheduler, depth=7)
    plans = pipeline.fill()
    assert [plan.step_id for plan in plans if 0 in list_slots(plan)] == [1, 4, 7]


def test_chunks_of_a_prompt_fill_every_stage_at_once() -> None:
    pipeline = open_loop(4)
    pipeline.scheduler.add(make_sequence(1, prompt_len=100))
    plans = pipeline.fill()
    assert [plan.rows[0].end for plan in plans] == [16, 32, 48, 64, 80]


@pytest.mark.parametrize(("num_stages", "per_step"), [(1, 8), (2, 4), (3, 3), (4, 2)])
def test_decoding_sequences_are_spread_over_the_stages(
    num_stages: int, per_step: int
) -> None:
    pipeline = open_loop(num_stages)
    for number in range(8):
        pipeline.scheduler.add(make_sequence(number, max_tokens=40))
    # All prompts fit into one step, and after it all of them decode.
    pipeline.fill()
    pipeline.drain_one()
    for _ in range(20):
        plans = pipeline.fill()
        assert all(len(plan.rows) <= per_step for plan in plans)
        pipeline.drain_one()
    assert len(pipeline.in_flight) >= num_stages - 1
    together = [slot for plan in pipeline.in_flight for slot in list_slots(plan)]
    assert len(together) >= 8 - per_step
    assert pipeline.run() == count_to(40, *range(8))


def test_a_prompt_that_comes_is_planned_at_once_beside_the_micro_batch() -> None:
    pipeline = open_loop(2)
    for number in range(6):
        pipeline.scheduler.add(make_sequence(number, max_tokens=40))
    for _ in range(8):
        pipeline.fill()
        pipeline.drain_one()
    pipeline.scheduler.add(make_sequence(9, prompt_len=40))
    (plan,) = pipeline.fill()
    assert [row.num_tokens for row in plan.rows] == [1, 1, 1, 13]


@settings(max_examples=examples(60))
@given(
    num_stages=st.integers(2, 5),
    num_sequences=st.integers(1, 11),
    depth=st.integers(1, 6),
    priorities=st.lists(st.integers(-1, 1), min_size=11, max_size=11),
)
def test_no_sequence_is_left_out_with_few_steps_in_flight(
    num_stages: int, num_sequences: int, depth: int, priorities: list[int]
) -> None:
    """Without turns, the first ones would be planned again before the last ones."""
    pipeline = Loop(make_scheduler(num_stages), depth=min(depth, num_stages + 1))
    for number in range(num_sequences):
        pipeline.scheduler.add(
            make_sequence(number, max_tokens=200, priority=priorities[number])
        )
    last_turns: dict[int, int] = {}
    for _ in range(60):
        for plan in pipeline.fill():
            last_turns.update(dict.fromkeys(list_slots(plan), plan.step_id))
            # At worst all of them leave one step, and enter num_stages steps again once
            # the first one's token has come back.
            assert plan.step_id - min(last_turns.values()) < 2 * num_stages
        pipeline.drain_one()
    assert len(last_turns) == num_sequences


def test_rows_of_a_micro_batch_stand_in_order() -> None:
    pipeline = open_loop(2)
    sequences = [
        make_sequence(number, max_tokens=30, priority=-number) for number in range(5)
    ]
    for sequence in sequences:
        pipeline.scheduler.add(sequence)
    for _ in range(15):
        for plan in pipeline.fill():
            by_slot = {sequence.slot: sequence.sequence_id for sequence in sequences}
            numbers = [by_slot[row.slot] for row in plan.rows]
            assert numbers == sorted(numbers, reverse=True)
        pipeline.drain_one()


def test_a_victim_that_was_held_back_leaves_no_room_in_the_budget() -> None:
    scheduler = make_scheduler(
        2, num_blocks=19, max_model_len=76, max_num_seqs=3, max_num_batched_tokens=4
    )
    pipeline = Loop(scheduler)
    for number in (1, 3):
        scheduler.add(make_sequence(number, prompt_len=2, max_tokens=20))
    pipeline.fill()
    pipeline.drain_one()
    scheduler.add(make_sequence(2, prompt_len=60))
    while scheduler.counters().num_preemptions == 0:
        (plan,) = pipeline.fill()
        assert plan.num_tokens == 4
        pipeline.drain_one()
    # The preempted sequence's chunk is planned after the other one's token.
    assert [row.num_tokens for row in plan.rows] == [1, 3]


def test_a_block_that_earlier_stages_have_written_is_shared_before_the_last_has() -> (
    None
):
    pipeline = open_loop(3)
    first = make_sequence(1, prompt_len=40)
    second = make_sequence(
        2, prompt_token_ids=first.prompt_token_ids[:33], max_tokens=3
    )
    pipeline.scheduler.add(first)
    pipeline.fill()
    pipeline.scheduler.add(second)
    # No result has come back, but the blocks of chunks in flight are found.
    (plan,) = pipeline.fill()
    assert (plan.rows[-1].start, plan.rows[-1].num_tokens) == (32, 1)
    assert len(pipeline.run()[2]) == 3


def test_a_pipeline_has_a_stage() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        make_scheduler(0)
