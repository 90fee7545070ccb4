"""Rows that the device skips, because their grammars are late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import random
from types import MappingProxyType

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import scheduling
from scheduling import Loop, count_to, make_device, make_sequence

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.types.ids import SequenceId
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import KEY_BYTES, NO_TOKEN, EmbeddedInput
from trioserve.types.structured import Grammar

IsLate = Callable[[int], bool]


def make_scheduler(num_stages: int = 1, num_blocks: int = 64) -> Scheduler:
    return scheduling.make_scheduler(
        num_blocks=num_blocks,
        max_num_seqs=8,
        max_model_len=4 * min(num_blocks, 32),
        num_stages=num_stages,
    )


def make_loop(is_late: IsLate, depth: int, scheduler: Scheduler | None = None) -> Loop:
    return Loop(scheduler or make_scheduler(), make_device(is_late=is_late), depth)


@settings(max_examples=examples(80))
@given(
    num_stages=st.integers(1, 4),
    num_blocks=st.integers(8, 40),
    num_sequences=st.integers(1, 6),
    share=st.floats(0.0, 0.9),
    seed=st.integers(0, 2**32),
)
def test_skipped_rows_change_no_output(
    num_stages: int, num_blocks: int, num_sequences: int, share: float, seed: int
) -> None:
    """Through preemptions, prefix hits, and steps in flight."""
    chance = random.Random(seed)
    scheduler = make_scheduler(num_stages, num_blocks)
    fresh = scheduler.statistics()
    loop = make_loop(lambda slot: chance.random() < share, num_stages + 1, scheduler)
    numbers = range(1, num_sequences + 1)
    for number in numbers:
        scheduler.add(make_sequence(number, chance.randint(1, 15), max_tokens=12))
    assert loop.run() == count_to(12, *numbers)
    assert scheduler.statistics() == fresh


@pytest.mark.parametrize(("num_stages", "depth"), [(1, 1), (1, 2), (2, 3)])
def test_a_late_sequence_keeps_its_slot_and_costs_few_rows(
    num_stages: int, depth: int
) -> None:
    scheduler = make_scheduler(num_stages)
    is_late = True
    loop = make_loop(lambda slot: is_late and slot == late.slot, depth, scheduler)
    late = make_sequence(1, max_tokens=3)
    scheduler.add(make_sequence(2, max_tokens=60))
    scheduler.add(late)
    while len(loop.written.get(2, ())) < 60:
        loop.step()
    assert loop.written == count_to(60, 2)
    rows = [row for plan in loop.device.plans for row in plan.rows]
    # The device reports the first one, and the second one was in flight then.
    assert sum(row.slot == late.slot for row in rows) <= 2
    is_late = False
    assert loop.run()[1] == count_to(3, 1)[1]
    assert scheduler.counters().num_preemptions == 0
    num_starts = Counter(s.slot for plan in loop.device.plans for s in plan.starts)
    assert set(num_starts.values()) == {1}


def test_a_late_sequence_that_is_alone_has_every_step() -> None:
    """Otherwise nothing would wake the loop."""
    numbers = iter(range(100))
    loop = make_loop(lambda slot: next(numbers) < 20, 2)
    loop.scheduler.add(make_sequence(max_tokens=2))
    assert loop.run(limit=30) == count_to(2, 1)


def test_a_sequence_that_is_often_late_has_no_row_behind_its_known_tokens() -> None:
    """Such a row would be skipped as soon as the one before it is."""
    late = iter([True] * 4 + [False] * 20)
    loop = make_loop(lambda slot: next(late), 2)
    loop.scheduler.add(make_sequence(max_tokens=4))
    loop.run()
    ends = [row.end for plan in loop.device.plans for row in plan.rows]
    # The first row behind a skipped one was in flight. There is no second one until a token
    # has come in time.
    assert ends == [4, 5, 4, 4, 5, 6, 7]


def test_a_prompt_that_ends_in_a_vector_starts_again() -> None:
    """The runner forgets a vector once it was read."""
    scheduler = make_scheduler()
    item = EmbeddedInput(
        kind="embeds",
        runs=((1, 3),),
        keys=bytes(2 * KEY_BYTES),
        tensors=MappingProxyType({}),
    )
    sequence = make_sequence(
        prompt_token_ids=(5, NO_TOKEN, NO_TOKEN), max_tokens=3, embedded=(item,)
    )
    # Asked when a row samples, and at the end of each step.
    late = iter([True, False, False, False, True])
    loop = make_loop(lambda slot: next(late, False), 1, scheduler)
    scheduler.add(sequence)
    assert loop.run() == count_to(3, 1)
    assert [len(plan.starts) for plan in loop.device.plans] == [1, 1, 0, 0, 0]


def test_the_runner_is_told_when_a_sequence_with_a_grammar_has_left() -> None:
    loop = make_loop(lambda slot: False, 2)
    loop.scheduler.add(make_sequence(1, max_tokens=3, grammar=Grammar(text="")))
    loop.scheduler.add(make_sequence(2, max_tokens=3))
    loop.run()
    ended = [slot for plan in loop.device.plans for slot in plan.ends]
    assert ended == [loop.device.plans[0].rows[0].slot]


def test_the_next_owner_of_a_slot_is_not_late_with_the_former_one() -> None:
    """The reports about the former one come while steps are in flight."""
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, grammar=Grammar(text="")))
    former = [scheduler.schedule(), scheduler.schedule()]
    scheduler.abort(SequenceId(1))
    scheduler.add(make_sequence(2))
    first = scheduler.schedule()
    assert first is not None
    [start] = first.starts
    for plan in former:
        assert plan is not None and plan.rows[0].slot == start.slot
        scheduler.update(plan, report_late(plan, start.slot))
    second = scheduler.schedule()
    assert second is not None and [row.slot for row in second.rows] == [start.slot]
    # A report of its own counts.
    scheduler.update(first, report_late(first, start.slot))
    assert scheduler.schedule() is None


def report_late(plan: StepPlan, slot: int) -> StepResult:
    return StepResult(
        step_id=plan.step_id, sampled=((),) * len(plan.rows), late=(slot,)
    )
