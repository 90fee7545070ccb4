"""Pipelines: chunks flow, tokens have time to come back, sequences take turns."""

from __future__ import annotations

from collections import deque

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams

BLOCK_SIZE = 4


def make_scheduler(num_stages: int, **changes: int) -> Scheduler:
    options = {
        "num_blocks": 256,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 16,
        "max_model_len": 256,
        "num_stages": num_stages,
    }
    return Scheduler(**(options | changes))


def make_sequence(
    number: int, prompt_len: int = 2, max_tokens: int = 8, priority: int = 0
) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(number),
        arrival=number,
        seed=number,
        flow=Flow(priority),
        prompt_token_ids=tuple(range(1000 * number, 1000 * number + prompt_len)),
        sampling=SamplingParams(max_tokens=max_tokens),
    )


class Pipeline:
    """Works like the engine loop, without a clock and with `depth` steps in flight."""

    def __init__(self, scheduler: Scheduler, depth: int) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.device = FakeDevice(block_size=BLOCK_SIZE, reads_blocks=True)
        self.in_flight: deque[StepPlan] = deque()
        self.written: dict[int, list[int]] = {}

    def fill(self) -> list[StepPlan]:
        plans = []
        while len(self.in_flight) < self.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            self.in_flight.append(plan)
            plans.append(plan)
        return plans

    def drain_one(self) -> None:
        plan = self.in_flight.popleft()
        for output in self.scheduler.update(plan, self.device.step(plan)):
            self.written.setdefault(output.sequence_id, []).extend(output.token_ids)
        self.scheduler.check()

    def run(self, limit: int = 5000) -> dict[int, list[int]]:
        for _ in range(limit):
            self.fill()
            if not self.in_flight:
                return self.written
            self.drain_one()
        raise AssertionError("the sequences never end")


def list_slots(plan: StepPlan) -> list[int]:
    return [row.slot for row in plan.rows]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_a_lone_sequence_waits_for_its_token_instead_of_a_stage(
    num_stages: int,
) -> None:
    pipeline = Pipeline(make_scheduler(num_stages), num_stages + 1)
    pipeline.scheduler.add(make_sequence(1))
    assert len(pipeline.fill()) == 1
    # Nothing else can be planned, so the stages are free for a new sequence.
    assert pipeline.scheduler.schedule() is None
    pipeline.drain_one()
    assert len(pipeline.fill()) == 1
    assert pipeline.run() == {1: [count_up(1, i) for i in range(8)]}


def test_a_placeholder_is_planned_once_its_token_has_had_time_to_come_back() -> None:
    scheduler = make_scheduler(3)
    scheduler.add(make_sequence(1))
    # A prompt of many chunks keeps the steps coming.
    scheduler.add(make_sequence(2, prompt_len=200))
    pipeline = Pipeline(scheduler, 7)
    plans = pipeline.fill()
    assert [plan.step_id for plan in plans if 0 in list_slots(plan)] == [1, 4, 7]


def test_chunks_of_a_prompt_fill_every_stage_at_once() -> None:
    pipeline = Pipeline(make_scheduler(4), 5)
    pipeline.scheduler.add(make_sequence(1, prompt_len=100))
    plans = pipeline.fill()
    assert [plan.rows[0].end for plan in plans] == [16, 32, 48, 64, 80]


@pytest.mark.parametrize(("num_stages", "per_step"), [(1, 8), (2, 4), (3, 3), (4, 2)])
def test_decoding_sequences_are_spread_over_the_stages(
    num_stages: int, per_step: int
) -> None:
    pipeline = Pipeline(make_scheduler(num_stages), num_stages + 1)
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
    assert pipeline.run() == {n: [count_up(n, i) for i in range(40)] for n in range(8)}


def test_a_prompt_that_comes_is_planned_at_once_beside_the_micro_batch() -> None:
    pipeline = Pipeline(make_scheduler(2), 3)
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
    pipeline = Pipeline(make_scheduler(num_stages), min(depth, num_stages + 1))
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
    pipeline = Pipeline(make_scheduler(2), 3)
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


def test_a_preempted_micro_batch_leaves_its_step_to_the_others() -> None:
    """If the step stayed empty, no step in flight would ever wake the loop."""
    # Seven blocks: both sequences may have three, and one of them four.
    scheduler = make_scheduler(2, num_blocks=7, max_model_len=28)
    pipeline = Pipeline(scheduler, 1)
    for number in (1, 2):
        scheduler.add(make_sequence(number, prompt_len=9, max_tokens=14))
    while pipeline.fill():
        pipeline.drain_one()
    assert scheduler.counters().num_preemptions > 0
    assert pipeline.written == {n: [count_up(n, i) for i in range(14)] for n in (1, 2)}


def test_a_victim_that_was_held_back_leaves_no_room_in_the_budget() -> None:
    scheduler = make_scheduler(
        2, num_blocks=19, max_model_len=76, max_num_seqs=3, max_num_batched_tokens=4
    )
    pipeline = Pipeline(scheduler, 1)
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


@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("num_blocks", [8, 11, 14])
def test_a_preemption_with_steps_in_flight_changes_no_output(
    num_stages: int, num_blocks: int
) -> None:
    scheduler = make_scheduler(
        num_stages, num_blocks=num_blocks, max_model_len=4 * num_blocks
    )
    pipeline = Pipeline(scheduler, num_stages + 1)
    for number in range(1, 5):
        scheduler.add(make_sequence(number, prompt_len=11, max_tokens=16))
    fresh = make_scheduler(num_stages, num_blocks=num_blocks, max_model_len=32)
    expected = {n: [count_up(n, i) for i in range(16)] for n in range(1, 5)}
    assert pipeline.run() == expected
    assert scheduler.counters().num_preemptions > 0
    assert scheduler.statistics() == fresh.statistics()


def test_an_abort_leaves_its_turn_to_others() -> None:
    pipeline = Pipeline(make_scheduler(2), 3)
    for number in (1, 2, 3):
        pipeline.scheduler.add(make_sequence(number, max_tokens=20))
    for _ in range(4):
        pipeline.fill()
        pipeline.drain_one()
    pipeline.fill()
    pipeline.scheduler.abort(SequenceId(1))
    written = pipeline.run()
    assert {n: len(tokens) for n, tokens in written.items() if n != 1} == {2: 20, 3: 20}
    assert pipeline.scheduler.statistics() == make_scheduler(2).statistics()


def test_a_block_that_earlier_stages_have_written_is_shared_before_the_last_has() -> (
    None
):
    pipeline = Pipeline(make_scheduler(3), 4)
    first = make_sequence(1, prompt_len=40)
    second = Sequence(
        sequence_id=SequenceId(2),
        arrival=2,
        seed=2,
        prompt_token_ids=first.prompt_token_ids[:33],
        sampling=SamplingParams(max_tokens=3),
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
