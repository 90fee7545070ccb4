"""The messages between stages of a pipeline, and the messages that the first stage awaits."""

from __future__ import annotations

from trioserve.types.plan import SlotStart, StepPlan, StepRow
from trioserve.types.sampling import SamplingParams
from trioserve.types.transfers import AwaitedTokens, SampledTransfer, list_transfers


def make_row(slot: int, *, num_tokens: int = 1, sample: bool = True) -> StepRow:
    return StepRow(
        slot=slot, start=0, num_tokens=num_tokens, new_block_ids=(), sample=sample
    )


def make_plan(step_id: int, *rows: StepRow, starts: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(
        step_id=step_id,
        rows=rows,
        starts=tuple(
            SlotStart(
                slot=slot,
                prompt_token_ids=(1,),
                output_token_ids=(),
                sampling=SamplingParams(),
                seed=0,
            )
            for slot in starts
        ),
    )


def test_a_step_that_samples_sends_its_tokens_back() -> None:
    plan = make_plan(3, make_row(0, num_tokens=5, sample=False), make_row(1))
    transfers = list_transfers(plan, 3)
    assert [(e.what, e.sender, e.receiver, e.num_rows) for e in transfers] == [
        ("hidden", 0, 1, 6),
        ("hidden", 1, 2, 6),
        ("sampled", 2, 0, 1),
    ]


def test_a_chunk_that_samples_nothing_sends_nothing_back() -> None:
    plan = make_plan(3, make_row(0, num_tokens=5, sample=False))
    assert [e.what for e in list_transfers(plan, 2)] == ["hidden"]


def test_one_stage_and_empty_plans_exchange_nothing() -> None:
    assert list_transfers(make_plan(1, make_row(0)), 1) == ()
    assert list_transfers(make_plan(1), 4) == ()


def test_the_first_stage_waits_only_for_tokens_that_its_rows_read() -> None:
    awaited = AwaitedTokens(depth=9)
    assert awaited.take(make_plan(1, make_row(0))) == ()
    assert awaited.take(make_plan(2, make_row(1))) == ()
    assert awaited.take(make_plan(3, make_row(2, sample=False))) == ()
    assert awaited.take(make_plan(4, make_row(0))) == (
        SampledTransfer(step_id=1, slots=(0,)),
    )
    assert awaited.take(make_plan(5, make_row(0))) == (
        SampledTransfer(step_id=2, slots=(1,)),
        SampledTransfer(step_id=4, slots=(0,)),
    )
    # The second sequence's token was received with the first one's.
    assert awaited.take(make_plan(6, make_row(1))) == ()


def test_a_token_for_a_former_owner_of_a_slot_is_dropped() -> None:
    awaited = AwaitedTokens(depth=9)
    awaited.take(make_plan(1, make_row(0), make_row(1)))
    assert awaited.take(make_plan(2, make_row(0), starts=(0,))) == ()
    assert awaited.take(make_plan(3, make_row(1))) == (
        SampledTransfer(step_id=1, slots=(None, 1)),
    )
    assert awaited.take(make_plan(4, make_row(0))) == (
        SampledTransfer(step_id=2, slots=(0,)),
    )


def test_old_tokens_are_received_even_if_no_row_reads_them() -> None:
    awaited = AwaitedTokens(depth=3)
    for step_id in range(1, 4):
        assert awaited.take(make_plan(step_id, make_row(step_id))) == ()
    assert awaited.take(make_plan(4)) == (SampledTransfer(step_id=1, slots=(1,)),)
