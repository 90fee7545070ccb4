"""Chunks and prefixes divide no image whose tokens see each other."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import Loop, make_device, make_scheduler, make_sequence

from trioserve.scheduler.generation.draft import Draft
from trioserve.scheduler.generation.sequence import Sequence
from trioserve.scheduler.generation.spans import Spans
from trioserve.scheduler.step_cost import StepCost
from trioserve.types.plan import StepPlan


def list_ends(plans: list[StepPlan], slot: int = 0) -> list[int]:
    return [row.end for plan in plans for row in plan.rows if row.slot == slot]


def run_prompts(*sequences: Sequence, **options: Any) -> list[StepPlan]:
    """Return the plans until all sequences have ended."""
    loop = Loop(make_scheduler(**options), make_device())
    for sequence in sequences:
        loop.add(sequence)
    return list(iter(loop.step, None))


@pytest.mark.parametrize(
    ("position", "back", "on"),
    [(0, 0, 0), (2, 2, 2), (3, 2, 5), (4, 2, 5), (5, 5, 5), (6, 5, 9), (9, 9, 9)]
    + [(10, 10, 10)],
)
def test_positions_inside_of_spans(position: int, back: int, on: int) -> None:
    """The second span follows the first one at once."""
    spans = Spans([(2, 5), (5, 9)])
    assert (spans.step_back(position), spans.step_on(position)) == (back, on)
    assert spans.is_inside(position) == (back != on)
    assert (spans.longest, Spans().longest) == (4, 0)
    assert Spans().step_back(position) == Spans().step_on(position) == position


def test_a_chunk_ends_before_an_image_that_it_would_divide() -> None:
    sequence = make_sequence(1, 30, spans=Spans([(10, 20)]), max_tokens=1)
    assert list_ends(run_prompts(sequence)) == [10, 26, 30]


def test_an_image_of_the_whole_budget_has_a_step_beside_decodes() -> None:
    """The others decode, so that exactly its tokens are left."""
    image = make_sequence(4, 17, spans=Spans([(2, 15)]), max_tokens=1)
    others = [make_sequence(number, 1, max_tokens=40) for number in range(3)]
    plans = run_prompts(*others, image)
    assert list_ends(plans, slot=3) == [2, 15, 17]
    with pytest.raises(ValueError, match="no step has room"):
        make_scheduler().add(make_sequence(1, 17, spans=Spans([(2, 16)])))


def test_an_image_waits_for_a_step_that_has_room() -> None:
    sequences = [
        make_sequence(0, 10, max_tokens=1),
        make_sequence(1, 12, spans=Spans([(0, 9)]), max_tokens=1),
    ]
    plans = run_prompts(*sequences)
    assert [[row.end for row in plan.rows] for plan in plans] == [[10], [12]]


class SixTokens(StepCost):
    """There is always time for six more tokens."""

    def count_tokens(self, *arguments: object) -> int:
        return 6


def test_an_image_takes_more_time_than_a_step_has_only_as_its_first_chunk() -> None:
    draft = Draft(1, 64, 4, SixTokens())
    draft.seconds = 1.0
    long, short = (
        make_sequence(1, 30, spans=Spans([(0, end)]), max_tokens=1) for end in (9, 6)
    )
    assert draft.keep_whole(long, 4) == 9
    other = make_sequence(2, 4)
    other.slot = 0
    draft.add_chunk(other, 4)
    assert draft.keep_whole(long, 4) == 0
    assert draft.keep_whole(short, 4) == 6


@pytest.mark.parametrize("begin, found", [(9, 8), (13, 12), (11, 8), (16, 16)])
def test_a_prefix_ends_before_an_image_of_which_blocks_are_missing(
    begin: int, found: int
) -> None:
    """The first prompt has the image, too, but its last tokens are in no full block."""
    scheduler = make_scheduler(max_num_batched_tokens=64)
    loop = Loop(scheduler, make_device())
    tokens = tuple(range(1, 30))
    spans = Spans([(begin, 19)])
    loop.add(make_sequence(1, prompt_token_ids=tokens[:19], spans=spans, max_tokens=1))
    loop.run()
    second = make_sequence(2, prompt_token_ids=tokens, spans=spans, max_tokens=1)
    loop.add(second)
    loop.run()
    assert second.num_cached_tokens == found


@pytest.mark.parametrize("num_checkpoints", [None, 9])
def test_a_prefix_behind_an_image_is_found(num_checkpoints: int | None) -> None:
    scheduler = make_scheduler(num_checkpoints=num_checkpoints)
    device = make_device(keeps_states=num_checkpoints is not None)
    loop = Loop(scheduler, device)
    tokens, spans = tuple(range(1, 30)), Spans([(3, 15)])
    for number in (1, 2):
        sequence = make_sequence(
            number, prompt_token_ids=tokens, spans=spans, max_tokens=1
        )
        loop.add(sequence)
        loop.run()
    assert sequence.num_cached_tokens == 28


def test_states_are_copied_at_no_border_inside_of_an_image() -> None:
    """The last full block ends inside of it."""
    sequence = make_sequence(1, 30, spans=Spans([(20, 30)]), max_tokens=1)
    plans = run_prompts(sequence, num_checkpoints=9)
    assert list_ends(plans) == [16, 30]
