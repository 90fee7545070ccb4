"""Steps in flight: placeholders are counted, filled, and given up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
import sys
import tracemalloc
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
from scheduling import Loop, make_device, make_scheduler, make_sequence

from trioserve.testing.fake_device import FakeDevice
from trioserve.types.output import SequenceError, StepResult, TokenDelta, TokenLogprobs
from trioserve.types.plan import StepPlan
from trioserve.types.structured import Grammar

NO = SequenceError(reason="no")


class Scripted(FakeDevice):
    """Returns given tokens for every row that samples."""

    def __init__(self, *rows: tuple[int, ...]) -> None:
        super().__init__()
        self._rows = iter(rows)

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return StepResult(
            step_id=plan.step_id,
            sampled=tuple(next(self._rows) for row in plan.rows if row.sample),
        )


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("num_blocks", [64, 12])
def test_a_sequence_without_output_ends_when_its_prompt_is_read(
    depth: int, num_blocks: int
) -> None:
    """It samples nothing, also beside others, and gives everything back."""
    scheduler = make_scheduler(num_blocks=num_blocks, max_model_len=48)
    device = make_device()
    lengths = {1: 1, 2: 5, 3: 16, 4: 40, 5: 1, 6: 4}
    for number, length in lengths.items():
        fields: dict[str, Any] = {
            "max_tokens": 0,
            "prompt_logprobs": 0 if number % 2 else None,
        }
        if number == 2:
            fields = {"max_tokens": 8}
        scheduler.add(make_sequence(number, length, **fields))
    loop = Loop(scheduler, device, depth)
    written = loop.run()
    assert loop.ended == {number: ("length", None) for number in lengths}
    assert {number for number, tokens in written.items() if tokens} == {2}
    assert sum(plan.num_sampled for plan in device.plans) >= 8
    assert scheduler.statistics().num_used_blocks == 0
    assert scheduler.counters().num_sampled_tokens == 8


def test_a_token_that_is_still_on_the_device_is_planned_as_if_it_were_known() -> None:
    scheduler, device = make_scheduler(), make_device()
    sequence = make_sequence()
    scheduler.add(sequence)
    plans = [scheduler.schedule() for _ in range(3)]
    rows = [plan.rows[0] for plan in plans if plan is not None]
    assert [(row.start, row.end, row.sample) for row in rows] == [
        (0, 4, True),
        (4, 5, True),
        (5, 6, True),
    ]
    assert (sequence.num_tokens, sequence.num_placeholders) == (4, 3)
    for left, plan in enumerate(plans):
        assert plan is not None
        scheduler.update(plan, device.step(plan))
        assert sequence.num_placeholders == 2 - left
        assert sequence.num_tokens == 5 + left
        scheduler.check()


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_nothing_is_planned_beyond_the_last_requested_token(depth: int) -> None:
    device = make_device()
    loop = Loop(make_scheduler(), device, depth)
    loop.scheduler.add(make_sequence(1, max_tokens=3))
    # This one ends at the model's length.
    loop.scheduler.add(make_sequence(2, prompt_len=60, max_tokens=50))
    assert {k: len(tokens) for k, tokens in loop.run().items()} == {1: 3, 2: 4}
    num_tokens = sum(plan.num_tokens for plan in device.plans)
    assert num_tokens == (4 + 2) + (60 + 3)


@pytest.mark.parametrize(
    ("rows", "written", "num_preemptions"),
    [
        pytest.param([(5,), (6,), (7,), (8,)], [5, 6, 7, 8], 0, id="as many"),
        pytest.param([(5, -1), (6, -1, -1), (7,), (8,)], [5, 6, 7, 8], 0, id="padded"),
        # The second step's result was computed with a token that never came.
        pytest.param([(), (9,), (5,), (6,), (7,), (8,)], [5, 6, 7, 8], 0, id="none"),
        pytest.param(
            [(5,), (-1, -1), (9,), (6,), (7,), (8,)], [5, 6, 7, 8], 0, id="all padded"
        ),
        pytest.param(
            [(5,), (), (), (6,), (7,), (8,)], [5, 6, 7, 8], 0, id="two discarded"
        ),
        # The second step was in flight, so its result is already known.
        pytest.param([(5, 6, 7), (6,), (8,)], [5, 6, 7, 8], 0, id="more"),
        pytest.param(
            [(5, 6), (6, 7, 8), (7,)], [5, 6, 7, 8], 0, id="more, overlapping"
        ),
        pytest.param([(5, 6, 7, 8, 9), (6,)], [5, 6, 7, 8], 0, id="beyond max_tokens"),
    ],
)
def test_as_many_tokens_as_come_take_the_place_of_placeholders(
    rows: list[tuple[int, ...]], written: list[int], num_preemptions: int
) -> None:
    loop = Loop(make_scheduler(), Scripted(*rows), depth=2)
    sequence = make_sequence(max_tokens=4)
    loop.scheduler.add(sequence)
    assert loop.run() == {1: written}
    assert sequence.output_token_ids == written
    assert sequence.num_placeholders == 0
    assert loop.scheduler.counters().num_preemptions == num_preemptions
    assert loop.scheduler.statistics() == make_scheduler().statistics()


def test_a_skipped_row_leaves_its_neighbours_alone() -> None:
    loop = Loop(make_scheduler(), Scripted((5,), (15,), (), (16,), (9,), (17,)), 2)
    for number in (1, 2):
        loop.scheduler.add(make_sequence(number, max_tokens=3))
    loop.fill()
    loop.drain_one()
    loop.fill()
    loop.drain_one()
    assert loop.written == {1: [5], 2: [15, 16]}
    loop.drain_one()
    assert loop.written == {1: [5], 2: [15, 16, 17]}
    plan = loop.scheduler.schedule()
    assert plan is not None
    # The sequence has kept its slot, and its last token is computed again.
    assert plan.starts == ()
    assert [(row.start, row.end) for row in plan.rows] == [(4, 5)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_error_of_the_device_ends_one_sequence(depth: int) -> None:
    scheduler = make_scheduler()
    for number in (1, 2):
        scheduler.add(make_sequence(number, max_tokens=3))
    plans = [scheduler.schedule() for _ in range(depth)]
    assert plans[0] is not None
    slot = plans[0].rows[0].slot
    failed, other = scheduler.update(
        plans[0], StepResult(step_id=1, sampled=((5,), (6,)), errors={slot: NO})
    )
    assert (failed.error, failed.token_ids, failed.finish_reason) == (NO, (), None)
    assert (other.error, other.token_ids) == (None, (6,))
    for plan in plans[1:]:
        assert plan is not None
        # The steps in flight have rows of it.
        [delta] = scheduler.update(
            plan, StepResult(step_id=plan.step_id, sampled=((7,), (8,)))
        )
        assert delta.token_ids == (8,)
    # The other one ends with its third token.
    assert scheduler.statistics().num_running == (depth < 3)


def test_an_error_behind_a_gap_is_ignored() -> None:
    """The step was computed with a token that never came."""
    scheduler = make_scheduler()
    sequence = make_sequence(max_tokens=3)
    scheduler.add(sequence)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None and second is not None
    scheduler.update(first, StepResult(step_id=1, sampled=((),)))
    result = StepResult(step_id=2, sampled=((5,),), errors={0: NO})
    assert scheduler.update(second, result) == []
    assert not sequence.is_ended


def test_logprobs_stay_with_the_tokens_that_are_new() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(logprobs=0))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None and second is not None

    def answer(plan: StepPlan, *token_ids: int) -> list[TokenDelta]:
        reports = tuple(
            TokenLogprobs(token_id=token_id, logprob=-1.0, rank=1)
            for token_id in token_ids
        )
        return scheduler.update(
            plan,
            StepResult(
                step_id=plan.step_id, sampled=(token_ids,), logprobs={0: reports}
            ),
        )

    for plan, given_ids, new in ((first, (5, 6), [5, 6]), (second, (6, 7), [7])):
        (output,) = answer(plan, *given_ids)
        assert list(output.token_ids) == new
        assert [report.token_id for report in output.logprobs] == new


def test_a_prompts_logprobs_are_given_once_though_it_is_computed_twice() -> None:
    scheduler = make_scheduler(num_blocks=6, max_model_len=24)
    reported = make_sequence(2, prompt_len=7, prompt_logprobs=0)
    scheduler.add(reported)
    scheduler.add(make_sequence(1, prompt_len=7, priority=-1))
    given_out: list[int] = []
    for _ in range(40):
        plan = scheduler.schedule()
        if plan is None:
            break
        reports = {
            row.slot: tuple(
                TokenLogprobs(token_id=position, logprob=-1.0, rank=1)
                for position in range(row.start + 1, min(row.end + 1, 7))
            )
            for row in plan.rows
            if row.slot == reported.slot
        }
        sampled = tuple((3,) for row in plan.rows if row.sample)
        result = StepResult(
            step_id=plan.step_id, sampled=sampled, prompt_logprobs=reports
        )
        for output in scheduler.update(plan, result):
            given_out += [report.token_id for report in output.prompt_logprobs]
    assert scheduler.counters().num_preemptions > 0
    assert given_out == [1, 2, 3, 4, 5, 6]


# prompt_len, family of prompts that begin alike, max_tokens, priority, a stop token,
# and the number of tokens after which the reader leaves.
sequences = st.tuples(
    st.integers(1, 30),
    st.integers(0, 2),
    st.integers(1, 20),
    st.integers(-1, 1),
    st.integers(0, 40),
    st.integers(1, 40),
)


def play(
    requests: Iterable[tuple[int, int, int, int, int, int]],
    *,
    depth: int,
    num_blocks: int,
    budget: int,
) -> dict[int, tuple[list[int], object]]:
    """Run requests to their ends; return their tokens and the reasons of the ends."""
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        max_model_len=num_blocks * 4,
        max_num_batched_tokens=budget,
    )
    fresh = scheduler.statistics()
    device = make_device(lambda s, i: (s * 7 + i) % 41)
    loop = Loop(scheduler, device, depth)
    leaves = {}
    for number, (length, family, max_tokens, priority, stop, leave) in enumerate(
        requests
    ):
        length = min(length, num_blocks * 4 - 1)
        leaves[number] = leave
        scheduler.add(
            make_sequence(
                number,
                prompt_token_ids=tuple(100 * family + i for i in range(length)),
                max_tokens=max_tokens,
                stop_token_ids=(stop,),
                priority=priority,
            )
        )
    for _ in range(3000):
        loop.fill()
        if not loop.in_flight:
            break
        for output in loop.drain_one():
            number = output.sequence_id
            if number not in loop.ended and len(loop.written[number]) >= leaves[number]:
                scheduler.abort(number)
                loop.ended[number] = "left", None
    assert scheduler.statistics() == fresh
    return {n: (tokens, loop.ended[n]) for n, tokens in loop.written.items()}


@settings(deadline=None, max_examples=examples(150))
@given(
    requests=st.lists(sequences, min_size=1, max_size=7),
    depth=st.integers(2, 4),
    num_blocks=st.integers(4, 24),
    budget=st.integers(4, 20),
)
def test_every_history_is_that_of_synchronous_scheduling(
    requests: list[tuple[int, int, int, int, int, int]],
    depth: int,
    num_blocks: int,
    budget: int,
) -> None:
    at_once = play(requests, depth=1, num_blocks=num_blocks, budget=budget)
    ahead = play(requests, depth=depth, num_blocks=num_blocks, budget=budget)
    assert ahead == at_once


def measure_step(num_output: int, *, depth: int = 2) -> tuple[int, int]:
    """Return the calls and the bytes of some steps after `num_output` tokens."""
    num_seqs, num_blocks = 4, 16_384
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=2**20,
        max_model_len=num_blocks * 4,
    )
    for number in range(num_seqs):
        scheduler.add(make_sequence(number, prompt_len=3, max_tokens=65_000))
    plan = scheduler.schedule()
    assert plan is not None
    # The device returns all of these tokens at once, which saves the steps.
    rows = tuple(tuple(range(num_output)) for _ in plan.rows)
    scheduler.update(plan, StepResult(step_id=plan.step_id, sampled=rows))
    in_flight: deque[StepPlan] = deque()

    def step() -> None:
        while len(in_flight) < depth:
            plan = scheduler.schedule()
            assert plan is not None
            in_flight.append(plan)
        plan = in_flight.popleft()
        rows = tuple((7,) for row in plan.rows if row.sample)
        scheduler.update(plan, StepResult(step_id=plan.step_id, sampled=rows))

    for _ in range(32):
        step()
    num_calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    # In 16 steps every sequence begins one block.
    for _ in range(16):
        step()
    sys.setprofile(None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return num_calls, peak


@pytest.mark.slow
def test_a_step_costs_the_same_after_100_and_after_60_000_tokens() -> None:
    """Both calls and bytes are counted, so that no copy hides in one call."""
    short_calls, short_bytes = measure_step(100)
    long_calls, long_bytes = measure_step(60_000)
    assert long_calls == short_calls
    # A list of so many ids would take 480 kB.
    assert long_bytes < short_bytes + 20_000


def test_plans_are_steady_while_decodes_alone_run_and_nobody_can_join() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_num_batched_tokens=5)
    loop = Loop(scheduler)

    def step() -> bool:
        loop.step()
        return scheduler.is_steady

    scheduler.add(make_sequence(1, 6, max_tokens=20))
    # The first chunk; the last token of the prompt is a row like a decode.
    assert [step() for _ in range(3)] == [False, True, True]
    scheduler.add(make_sequence(2, 4, max_tokens=3))
    assert not scheduler.is_steady
    assert [step() for _ in range(2)] == [False, True]
    # There is no slot for it.
    scheduler.add(make_sequence(3, 4, max_tokens=3, grammar=Grammar(text="")))
    assert scheduler.is_steady
    # When it has one, its grammar may be late.
    assert [step() for _ in range(4)] == [False, False, False, True]
    assert loop.ended.keys() == {2, 3}
