"""The scheduler's policy, step by step, without a device."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import scheduling
from scheduling import Loop, make_device, make_scheduler

from trioserve.scheduler.generation.counts import SchedulerCounters, SchedulerStatistics
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import LEVEL_SECONDS
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.output import TokenDelta
from trioserve.types.plan import StepPlan

make_sequence = partial(scheduling.make_sequence, max_tokens=4)


def run_step(
    scheduler: Scheduler, device: FakeDevice
) -> tuple[StepPlan, list[TokenDelta]] | None:
    plan = scheduler.schedule()
    if plan is None:
        return None
    outputs = scheduler.update(plan, device.step(plan))
    scheduler.check()
    return plan, outputs


def run_all(scheduler: Scheduler, device: FakeDevice) -> dict[int, list[int]]:
    return Loop(scheduler, device).run()


def row_lengths(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [row.num_tokens for row in plan.rows]


def test_a_lone_sequence_prefills_once_and_then_decodes() -> None:
    scheduler, device = make_scheduler(), make_device()
    scheduler.add(make_sequence(1, prompt_len=6))
    lengths = []
    while (step := run_step(scheduler, device)) is not None:
        lengths.append(row_lengths(step[0]))
    assert lengths == [[6], [1], [1], [1]]
    assert scheduler.statistics() == make_scheduler().statistics()


def test_a_long_prompt_is_cut_into_chunks_and_samples_after_the_last() -> None:
    scheduler, device = make_scheduler(), make_device()
    scheduler.add(make_sequence(1, prompt_len=40, max_tokens=1))
    rows = []
    while (step := run_step(scheduler, device)) is not None:
        rows += [(row.start, row.num_tokens, row.sample) for row in step[0].rows]
    assert rows == [(0, 16, False), (16, 16, False), (32, 8, True)]


def test_decoding_sequences_get_their_token_while_a_long_prompt_is_computed() -> None:
    scheduler, device = make_scheduler(), make_device()
    scheduler.add(make_sequence(2, max_tokens=8))
    scheduler.add(make_sequence(3, max_tokens=8))
    run_step(scheduler, device)
    # The long prompt is first in order, but takes only the tokens that others leave.
    scheduler.add(make_sequence(1, prompt_len=40))
    assert row_lengths(scheduler.schedule()) == [1, 1, 14]


def test_an_earlier_long_prompt_leaves_the_tokens_of_later_ones_their_place() -> None:
    scheduler, device = make_scheduler(), make_device()
    scheduler.add(make_sequence(1, prompt_len=30))
    run_step(scheduler, device)
    scheduler.add(make_sequence(2, prompt_len=2, max_tokens=20))
    assert row_lengths(run_step(scheduler, device)[0]) == [14, 2]  # type: ignore[index]
    scheduler.add(make_sequence(0, prompt_len=40))
    assert row_lengths(run_step(scheduler, device)[0]) == [1, 1, 14]  # type: ignore[index]
    plan = scheduler.schedule()
    assert row_lengths(plan) == [1, 1, 14]


def test_the_lower_priority_number_is_admitted_first_then_the_earlier_arrival() -> None:
    scheduler, device = make_scheduler(max_num_seqs=1), make_device()
    for number, priority in ((1, 0), (2, 5), (3, -1), (4, 0)):
        scheduler.add(make_sequence(number, max_tokens=1, priority=priority))
    order = []
    while (step := run_step(scheduler, device)) is not None:
        order += [output.sequence_id for output in step[1]]
    assert order == [3, 1, 4, 2]


def test_a_level_of_priority_is_worth_a_bounded_time() -> None:
    """A one-second urgent request comes each second; such could be first for ever."""
    scheduler, device = make_scheduler(max_num_seqs=1), make_device()
    patient = make_sequence(0, max_tokens=1, priority=1)
    scheduler.add(patient)
    for number in range(1, 100):
        scheduler.add(make_sequence(number, max_tokens=1))
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(plan, device.step(plan), seconds=1.0)
        if patient.is_ended:
            break
    # LEVEL_SECONDS of others, and one second of its own.
    assert number == LEVEL_SECONDS + 1


def test_a_waiting_prompt_is_not_overtaken_by_a_shorter_one() -> None:
    scheduler = make_scheduler(num_blocks=16)
    scheduler.add(make_sequence(1, prompt_len=16))
    assert scheduler.schedule() is not None
    scheduler.add(make_sequence(2, prompt_len=60))
    scheduler.add(make_sequence(3, prompt_len=1))
    plan = scheduler.schedule()
    assert plan is not None and plan.starts == ()


def test_the_victim_has_the_lowest_priority_not_the_latest_arrival() -> None:
    scheduler = make_scheduler(num_blocks=10, max_model_len=40)
    device = make_device()
    scheduler.add(make_sequence(1, prompt_len=15, max_tokens=20, priority=1))
    run_step(scheduler, device)
    scheduler.add(make_sequence(2, prompt_len=15, max_tokens=20, priority=0))
    ended = []
    while (step := run_step(scheduler, device)) is not None:
        ended += [o.sequence_id for o in step[1] if o.finish_reason]
    assert scheduler.counters().num_preemptions > 0
    assert ended == [2, 1]


def test_a_second_prompt_shares_the_full_blocks_of_the_first() -> None:
    scheduler, device = make_scheduler(), make_device()
    prompt = tuple(range(10))
    scheduler.add(make_sequence(1, prompt_token_ids=prompt, max_tokens=1))
    run_all(scheduler, device)
    scheduler.add(make_sequence(2, prompt_token_ids=prompt, max_tokens=1))
    plan, outputs = run_step(scheduler, device)  # type: ignore[misc]
    assert [(row.start, row.num_tokens) for row in plan.rows] == [(8, 2)]
    assert outputs[0].num_cached_tokens == 8


def test_the_last_prompt_token_is_computed_even_if_every_block_is_cached() -> None:
    scheduler, device = make_scheduler(), make_device()
    prompt = tuple(range(8))
    for number in (1, 2):
        scheduler.add(make_sequence(number, prompt_token_ids=prompt, max_tokens=1))
        run_all(scheduler, device)
    assert [(row.start, row.num_tokens) for row in device.plans[-1].rows] == [(4, 4)]


def test_siblings_of_one_step_share_the_prompt_that_the_first_computes() -> None:
    scheduler, device = make_scheduler(), make_device()
    prompt = tuple(range(9))
    for number in (1, 2, 3):
        scheduler.add(make_sequence(number, prompt_token_ids=prompt))
    plan, _ = run_step(scheduler, device)  # type: ignore[misc]
    assert [row.num_tokens for row in plan.rows] == [9, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [{"cache_salt": "other"}, {"prompt_logprobs": 1}],
    ids=["salt", "logprobs"],
)
def test_nothing_is_shared_with(changes: dict[str, Any]) -> None:
    """Another salt's blocks are not found, and prompt logprobs need every token."""
    scheduler, device = make_scheduler(), make_device()
    prompt = tuple(range(10))
    scheduler.add(make_sequence(1, prompt_token_ids=prompt, max_tokens=1))
    run_all(scheduler, device)
    scheduler.add(make_sequence(2, prompt_token_ids=prompt, **changes))
    assert row_lengths(scheduler.schedule()) == [10]


def test_the_least_recently_used_blocks_are_evicted_first() -> None:
    scheduler = make_scheduler(num_blocks=6, max_model_len=24)
    device = make_device()
    for number in (1, 2, 1, 3):  # 3 blocks each: 3 must evict 2's
        scheduler.add(make_sequence(number, prompt_len=12, max_tokens=1))
        run_all(scheduler, device)
    scheduler.add(make_sequence(1, prompt_len=12, max_tokens=1))
    run_all(scheduler, device)
    assert device.plans[-1].rows[0].start == 8
    scheduler.add(make_sequence(2, prompt_len=12, max_tokens=1))
    run_all(scheduler, device)
    assert device.plans[-1].rows[0].start == 0


def test_an_abort_frees_everything_at_once() -> None:
    scheduler, device = make_scheduler(), make_device()
    scheduler.add(make_sequence(1))
    scheduler.add(make_sequence(2))
    run_step(scheduler, device)
    for number in (1, 2, 2, 77):
        scheduler.abort(SequenceId(number))
    scheduler.check()
    assert scheduler.statistics() == make_scheduler().statistics()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_tokens": 3}, ([5, 6, 7], "length", None)),
        ({"eos_token_ids": frozenset({6})}, ([5, 6], "stop", None)),
        ({"stop_token_ids": (6,)}, ([5, 6], "stop", 6)),
        (
            {"stop_token_ids": (6, 7), "min_tokens": 3, "max_tokens": 9},
            ([5, 6, 7], "stop", 7),
        ),
    ],
    ids=["max_tokens", "eos", "stop_token_ids", "min_tokens"],
)
def test_a_sequence_ends_by(
    changes: dict[str, Any], expected: tuple[list[int], str, int | None]
) -> None:
    """Each way to end gives its reason in the last output."""
    scheduler = make_scheduler()
    device = FakeDevice(lambda seed, index: 5 + index, block_size=4)
    scheduler.add(make_sequence(1, **changes))
    tokens: list[int] = []
    while (step := run_step(scheduler, device)) is not None:
        for output in step[1]:
            tokens += output.token_ids
            last = output
    assert (tokens, last.finish_reason, last.stop_token_id) == expected


def test_a_prompt_that_can_never_fit_is_refused_when_it_is_added() -> None:
    scheduler = make_scheduler(max_model_len=10)
    with pytest.raises(ValueError, match="no room"):
        scheduler.add(make_sequence(1, prompt_len=10))


def test_a_sequence_that_is_preempted_leaves_its_token_to_a_prompt() -> None:
    scheduler = make_scheduler(
        num_blocks=12, max_model_len=40, max_num_seqs=3, max_num_batched_tokens=4
    )
    device = make_device()
    for number in (1, 2):
        scheduler.add(make_sequence(number, max_tokens=30))
        run_step(scheduler, device)
    scheduler.add(make_sequence(3, prompt_len=24, priority=-1))
    plan = None
    while scheduler.counters().num_preemptions == 0:
        step = run_step(scheduler, device)
        assert step is not None
        plan = step[0]
    assert row_lengths(plan) == [1, 3]
    run_all(scheduler, device)


def test_statistics_count_resources_that_a_step_in_flight_holds() -> None:
    scheduler, device = make_scheduler(max_num_seqs=1), make_device()
    for number in (1, 2):
        scheduler.add(make_sequence(number, prompt_len=5))
    plan = scheduler.schedule()
    assert plan is not None
    assert scheduler.statistics() == SchedulerStatistics(
        num_running=1,
        num_waiting=1,
        num_steps_in_flight=1,
        num_used_blocks=2,
        num_blocks=64,
    )
    scheduler.update(plan, device.step(plan))
    assert scheduler.statistics().num_steps_in_flight == 0


def test_counters_count_computed_and_sampled_tokens() -> None:
    scheduler, device = make_scheduler(), make_device()
    assert scheduler.counters() == SchedulerCounters()
    # The second one finds the prompt's first block, which both share. Each one fills a
    # second block with its own tokens.
    prompt = tuple(range(6))
    for number in (1, 2):
        scheduler.add(make_sequence(number, prompt_token_ids=prompt, max_tokens=3))
        while (plan := scheduler.schedule()) is not None:
            scheduler.update(plan, device.step(plan), seconds=0.5)
    assert scheduler.counters() == SchedulerCounters(
        num_steps=6,
        num_preemptions=0,
        num_computed_tokens=8 + 4,
        num_prompt_tokens=12,
        num_sampled_tokens=6,
        num_prefix_queried_tokens=12,
        num_prefix_hit_tokens=4,
        num_cached_blocks=3,
        step_seconds=3.0,
    )
