"""Sequences give back the blocks behind their windows; prefixes are found nevertheless."""

from __future__ import annotations

import random

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
from scheduling import Loop, count_to, make_device, make_scheduler, make_sequence

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.types.windows import count_window_blocks

BLOCK_SIZE = 4
WINDOW = 8


def make_loop(num_window_blocks: int, **options: object) -> Loop:
    """Return a loop whose scheduler has windows of 8 tokens, and chunks of 8."""
    fields = {"max_num_batched_tokens": 8, "max_model_len": 200, **options}
    scheduler = make_scheduler(
        num_blocks=100, num_window_blocks=num_window_blocks, window=WINDOW, **fields
    )
    return Loop(scheduler, make_device(window=WINDOW))


def answer(loop: Loop, number: int, prompt: range | tuple[int, ...]) -> int:
    """Answer a prompt alone; return how many of its tokens were found."""
    sequence = make_sequence(number, prompt_token_ids=tuple(prompt), max_tokens=20)
    loop.add(sequence)
    loop.run()
    return sequence.num_cached_tokens


def test_a_long_sequence_holds_few_window_blocks() -> None:
    loop = make_loop(num_window_blocks=6)
    loop.add(make_sequence(1, 100, max_tokens=60))
    most = 0
    while loop.step() is not None:
        most = max(most, loop.scheduler.statistics().num_used_window_blocks)
    assert loop.written == count_to(60, 1)
    assert loop.num_preemptions == 0
    # A window and a chunk of 15 tokens, a block in which they begin, and one more.
    assert most == 6


def test_a_pool_that_cannot_hold_a_window_and_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="fit the pool alone"):
        make_loop(num_window_blocks=5)
    # A shorter sequence needs no more than blocks of its own tokens.
    make_loop(num_window_blocks=5, max_model_len=20)


def test_many_sequences_share_a_pool_that_holds_their_windows_alone() -> None:
    loop = make_loop(num_window_blocks=4 * 5 + 3)
    numbers = range(1, 5)
    for number in numbers:
        loop.add(make_sequence(number, 5, max_tokens=80))
    assert loop.run() == count_to(80, *numbers)
    assert loop.num_preemptions == 0


def test_the_usage_is_that_of_the_fuller_pool() -> None:
    loop = make_loop(num_window_blocks=12)
    loop.add(make_sequence(1, 100, max_tokens=60))
    loop.step()
    statistics = loop.scheduler.statistics()
    assert statistics.num_used_blocks == 25
    assert statistics.num_used_window_blocks == 6
    assert statistics.kv_usage == 0.5
    assert loop.scheduler.list_holdings().sequences[0].num_blocks == 31


def test_the_next_turn_of_a_chat_is_found_behind_windows_that_were_given_back() -> None:
    loop = make_loop(num_window_blocks=30)
    prompt = tuple(range(50))
    assert answer(loop, 1, prompt) == 0
    whole = prompt + tuple(loop.written[1])
    # Of 70 tokens, the last one was never computed.
    assert answer(loop, 2, (*whole, 7, 8, 9)) == 68
    # Without the answer, as templates leave out reasoning.
    assert answer(loop, 3, (*prompt, 3, 3, 3)) == 48


def test_a_prefix_is_found_up_to_where_its_window_is_cached() -> None:
    loop = make_loop(num_window_blocks=12)
    assert answer(loop, 1, range(100)) == 0
    # The blocks at its beginning were taken again, and those at its end were not.
    assert answer(loop, 2, (*range(20), 3)) == 0
    assert answer(loop, 3, (*range(100), 3)) == 100


def test_long_prompts_and_answers_make_way_before_the_ends_of_chats() -> None:
    loop = make_loop(num_window_blocks=18, max_model_len=400)
    assert answer(loop, 1, range(30)) == 0
    loop.add(make_sequence(2, 100, max_tokens=90))
    loop.run()
    # Without its answer.
    assert answer(loop, 3, (*range(30), 3)) == 28


def test_a_shared_beginning_is_found_by_the_third_prompt_that_has_it() -> None:
    loop = make_loop(num_window_blocks=16)
    prompts = [(*range(40), *range(1000 * i, 1000 * i + 50)) for i in range(1, 5)]
    # The first two show where prompts part.
    found = [answer(loop, i, prompt) for i, prompt in enumerate(prompts)]
    assert found == [0, 0, 40, 40]


def test_blocks_that_were_given_back_are_found_as_long_as_there_is_room() -> None:
    loop = make_loop(num_window_blocks=80)
    prompts = [(*range(40), *range(1000 * i, 1000 * i + 50)) for i in range(1, 3)]
    assert [answer(loop, i, prompt) for i, prompt in enumerate(prompts)] == [0, 40]


def test_states_and_windows_must_both_be_there() -> None:
    scheduler = make_scheduler(
        num_blocks=100,
        num_window_blocks=40,
        window=WINDOW,
        max_num_batched_tokens=16,
        max_model_len=200,
        num_checkpoints=1,
    )
    loop = Loop(scheduler, make_device(window=WINDOW, keeps_states=True))
    assert answer(loop, 1, range(30)) == 0
    # The one copy of states is behind the prompt, and its window was given back to the cache.
    assert answer(loop, 2, (*range(30), 5, 6, 7)) == 28


def run_late(
    scheduler: Scheduler, block_size: int, num_stages: int, share: float, seed: int
) -> None:
    chance = random.Random(seed)
    device = make_device(
        block_size=block_size,
        window=WINDOW,
        is_late=lambda slot: chance.random() < share,
    )
    loop = Loop(scheduler, device, num_stages + 3)
    numbers = range(1, chance.randint(2, 6))
    for number in numbers:
        scheduler.add(make_sequence(number, chance.randint(1, 25), max_tokens=30))
    assert loop.run() == count_to(30, *numbers)


@settings(max_examples=examples(40), deadline=None)
@given(
    block_size=st.sampled_from([1, 4]),
    num_stages=st.integers(1, 3),
    num_spare=st.integers(0, 6),
    share=st.floats(0.0, 0.8),
    seed=st.integers(0, 2**32),
)
def test_the_last_token_can_be_computed_again(
    block_size: int, num_stages: int, num_spare: int, share: float, seed: int
) -> None:
    """The device skips rows behind which others were planned already."""
    scheduler = make_scheduler(
        num_stages=num_stages,
        num_blocks=256 // block_size,
        block_size=block_size,
        num_window_blocks=count_window_blocks(WINDOW, 16, block_size) + num_spare,
        window=WINDOW,
        max_num_seqs=8,
    )
    fresh = scheduler.statistics()
    run_late(scheduler, block_size, num_stages, share, seed)
    assert scheduler.statistics() == fresh
