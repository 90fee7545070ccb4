"""Whole inputs up to a budget, and a fair turn for every request."""

from __future__ import annotations

from array import array
import pickle

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest

from trioserve.scheduler.pooling.flow_queue import PoolingFlow, PoolingJob
from trioserve.scheduler.pooling.scheduler import (
    PoolingCounters,
    PoolingScheduler,
    PoolingStatistics,
)
from trioserve.types.pooling import (
    PoolingInput,
    PoolingParams,
    PoolingPlan,
    PoolingResult,
    PoolingRow,
    QueryKey,
)
from trioserve.types.tensors import TensorBytes

EMBED = PoolingParams(task="embed")


def make_row(num_tokens: int, *, keep_as: int | None = None) -> PoolingRow:
    return PoolingRow(
        input=PoolingInput(token_ids=array("i", [1] * num_tokens)),
        params=EMBED,
        keep_as=None if keep_as is None else QueryKey(keep_as),
    )


def make_scheduler(
    max_num_seqs: int = 100, max_num_batched_tokens: int = 100
) -> PoolingScheduler:
    return PoolingScheduler(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )


def answer(plan: PoolingPlan, num_kept: int = 0) -> PoolingResult:
    tensor = TensorBytes(data=b"", dtype="float32", shape=(0,))
    return PoolingResult(
        step_id=plan.step_id, tensors=(tensor,) * len(plan.rows), num_kept=num_kept
    )


def run_step(scheduler: PoolingScheduler) -> list[PoolingJob]:
    plan = scheduler.schedule()
    assert plan is not None
    return [job for job, _ in scheduler.update(plan, answer(plan))]


def test_a_step_takes_as_many_inputs_as_its_tokens_allow() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    jobs = [scheduler.add(make_row(40), flow) for _ in range(3)]
    assert run_step(scheduler) == jobs[:2]
    assert run_step(scheduler) == jobs[2:]
    assert scheduler.schedule() is None


def test_a_step_takes_no_more_inputs_than_it_may() -> None:
    scheduler, flow = make_scheduler(max_num_seqs=2), PoolingFlow(0)
    for _ in range(3):
        scheduler.add(make_row(1), flow)
    assert len(run_step(scheduler)) == 2


def test_an_input_longer_than_the_budget_is_a_step_by_itself() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    jobs = [scheduler.add(make_row(num_tokens), flow) for num_tokens in (5, 500, 5)]
    assert [run_step(scheduler) for _ in range(3)] == [[job] for job in jobs]


def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    scheduler = make_scheduler()
    library = PoolingFlow(0)
    for _ in range(50):
        scheduler.add(make_row(100), library)
    run_step(scheduler)
    question = scheduler.add(make_row(5), PoolingFlow(0))
    assert question in run_step(scheduler) + run_step(scheduler)


def test_two_long_requests_are_given_the_same_number_of_tokens() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=10)
    coarse, fine = PoolingFlow(0), PoolingFlow(0)
    big = {scheduler.add(make_row(10), coarse) for _ in range(20)}
    small = {scheduler.add(make_row(1), fine) for _ in range(200)}
    done = [job for _ in range(20) for job in run_step(scheduler)]
    num_big = 10 * len(big.intersection(done))
    assert abs(num_big - len(small.intersection(done))) <= 20


def test_a_request_that_comes_late_does_not_make_up_for_missed_turns() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=1)
    early = PoolingFlow(0)
    for _ in range(50):
        scheduler.add(make_row(1), early)
    for _ in range(20):
        run_step(scheduler)
    late = PoolingFlow(0)
    ours = {scheduler.add(make_row(1), late) for _ in range(20)}
    done = [job for _ in range(20) for job in run_step(scheduler)]
    assert len(ours.intersection(done)) in (10, 11)


def test_the_lower_priority_goes_first() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=1)
    last = scheduler.add(make_row(1), PoolingFlow(1))
    first = scheduler.add(make_row(1), PoolingFlow(-1))
    assert run_step(scheduler) + run_step(scheduler) == [first, last]


@pytest.mark.parametrize("priority", [0, 1])
def test_new_requests_do_not_keep_another_waiting_for_ever(priority: int) -> None:
    """Two short requests come in each step, which has room for one and a half."""
    scheduler = make_scheduler(max_num_batched_tokens=1500)
    patient = PoolingFlow(priority)
    scheduler.add(make_row(1000), patient)
    last = scheduler.add(make_row(1000), patient)
    scheduler.add(make_row(1000), PoolingFlow(0))
    for _ in range(1000):
        for _ in range(2):
            scheduler.add(make_row(1000), PoolingFlow(0))
        if last in run_step(scheduler):
            return
    raise AssertionError("it waits for ever")


def test_aborted_inputs_are_not_planned() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    jobs = [scheduler.add(make_row(1), flow) for _ in range(3)]
    scheduler.abort(jobs[1:2])
    scheduler.abort(jobs[1:2])
    assert run_step(scheduler) == [jobs[0], jobs[2]]
    assert scheduler.statistics() == make_scheduler().statistics()


def test_given_up_inputs_do_not_pile_up() -> None:
    scheduler = make_scheduler()
    flow = PoolingFlow(0)
    scheduler.add(make_row(1), flow)
    for _ in range(2000):
        scheduler.abort([scheduler.add(make_row(1), flow)])
        scheduler.abort([scheduler.add(make_row(1), PoolingFlow(0))])
    assert len(pickle.dumps((scheduler, flow))) < 20_000


def test_releases_reach_an_idle_device() -> None:
    scheduler = make_scheduler()
    scheduler.release(QueryKey(7))
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.releases == (7,)
    assert plan.rows == ()
    assert list(scheduler.update(plan, answer(plan))) == []
    assert scheduler.schedule() is None


def test_a_query_released_while_its_step_runs_is_forgotten_by_a_later_step() -> None:
    """Otherwise the step would keep it after its release, for ever."""
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    job = scheduler.add(make_row(1, keep_as=7), flow)
    first = scheduler.schedule()
    assert first is not None
    scheduler.abort([job])
    scheduler.release(QueryKey(7))
    second = scheduler.schedule()
    assert second is not None
    assert first.releases == ()
    assert second.releases == (7,)
    assert second.step_id > first.step_id


def test_the_device_tells_how_much_it_keeps() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    scheduler.add(make_row(1, keep_as=7), flow)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(plan, answer(plan, num_kept=1))
    assert scheduler.statistics().num_kept == 1


REQUESTS = st.lists(
    st.tuples(
        st.integers(-1, 1),  # priority
        st.lists(st.integers(1, 300), min_size=1, max_size=8),  # tokens of its inputs
        st.integers(0, 3),  # steps until the next request comes
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(200))
@given(REQUESTS)
def test_every_input_is_read_once_and_a_requests_first_before_its_others(
    requests: list[tuple[int, list[int], int]],
) -> None:
    """Documents are never read before their query, in any order of arrival."""
    scheduler = make_scheduler(max_num_seqs=4)
    flows: list[list[PoolingJob]] = []
    done: list[PoolingJob] = []
    for priority, sizes, num_steps in requests:
        flow = PoolingFlow(priority)
        flows.append([scheduler.add(make_row(size), flow) for size in sizes])
        for _ in range(num_steps):
            if (plan := scheduler.schedule()) is not None:
                done += [job for job, _ in scheduler.update(plan, answer(plan))]
    while (plan := scheduler.schedule()) is not None:
        assert plan.num_tokens <= 100 or len(plan.rows) == 1
        done += [job for job, _ in scheduler.update(plan, answer(plan))]
    position = {id(job): index for index, job in enumerate(done)}
    assert len(position) == len(done) == sum(map(len, flows))
    for jobs in flows:
        order = [position[id(job)] for job in jobs]
        assert order == sorted(order)
    assert scheduler.counters().num_inputs == len(done)


def test_inputs_that_fill_the_budget_to_the_last_token_are_one_step() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    jobs = [scheduler.add(make_row(num_tokens), flow) for num_tokens in (40, 60)]
    assert run_step(scheduler) == jobs


def test_the_next_turn_is_later_by_the_tokens_of_all_waiting_requests() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=512)
    flows = [PoolingFlow(0) for _ in range(3)]
    for flow in flows:
        for _ in range(2):
            scheduler.add(make_row(512), flow)
    for _ in flows:
        run_step(scheduler)
    assert [flow.turn for flow in flows] == [3 * 512] * 3


def test_a_request_with_nothing_left_does_not_put_off_the_turns_of_others() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=512)
    short, long = PoolingFlow(0), PoolingFlow(0)
    for flow in (short, long, long):
        scheduler.add(make_row(512), flow)
    run_step(scheduler)
    run_step(scheduler)
    assert long.turn == 512


def test_counters_add_up_all_steps() -> None:
    scheduler, flow = make_scheduler(), PoolingFlow(0)
    assert scheduler.counters() == PoolingCounters(
        num_steps=0, num_inputs=0, num_input_tokens=0, step_seconds=0.0
    )
    for num_tokens in (40, 50, 60):
        scheduler.add(make_row(num_tokens), flow)
    for seconds in (0.5, 0.25):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(plan, answer(plan), seconds)
    assert scheduler.counters() == PoolingCounters(
        num_steps=2, num_inputs=3, num_input_tokens=150, step_seconds=0.75
    )


def test_a_step_without_a_duration_adds_no_seconds() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_row(1), PoolingFlow(0))
    run_step(scheduler)
    assert scheduler.counters().step_seconds == 0.0


def test_a_result_without_a_tensor_for_each_input_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_row(1), PoolingFlow(0))
    plan = scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError):
        list(scheduler.update(plan, PoolingResult(step_id=plan.step_id, tensors=())))


def test_statistics_count_resources_that_a_step_in_flight_holds() -> None:
    scheduler, flow = make_scheduler(max_num_seqs=2), PoolingFlow(0)
    for _ in range(3):
        scheduler.add(make_row(1), flow)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.release(QueryKey(7))
    assert scheduler.statistics() == PoolingStatistics(
        num_running=2, num_waiting=1, num_kept=0, num_releases=1
    )
