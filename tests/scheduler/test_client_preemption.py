"""A client below its share takes places from the client that is most above its share."""

from __future__ import annotations

from collections import Counter
import sys
from types import FrameType
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
from scheduling import Loop, make_scheduler, make_sequence

from trioserve.scheduler.generation.sequence import Sequence
from trioserve.scheduler.generation.shared_queue import SharedQueue
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.client import Client

ANN, BOB, CARL = (Client(name=name) for name in ("ann", "bob", "carl"))

ENDLESS = 10_000


class Bench(Loop):
    """A scheduler with a large pool, whose clients send requests of one sequence each."""

    def __init__(self, **changes: Any) -> None:
        options = {
            "num_blocks": 400,
            "block_size": 16,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_model_len": 6400,
        }
        scheduler = make_scheduler(**(options | changes))
        super().__init__(
            scheduler, FakeDevice(block_size=16), checks=False, seconds=0.01
        )

    def ask(
        self,
        client: Client,
        num_prompt: int = 8,
        num_output: int = ENDLESS,
        priority: int = 0,
        num_shared: int = 0,
    ) -> Sequence:
        """Add a request.

        Args:
          num_shared: tokens with which the prompts of all such requests begin.
        """
        number = len(self.sequences)
        first = 1000 * number
        prompt = (
            *range(10**6, 10**6 + num_shared),
            *range(first, first + num_prompt - num_shared),
        )
        return self.add(
            make_sequence(
                number,
                prompt_token_ids=prompt,
                client=client,
                priority=priority,
                max_tokens=num_output,
            )
        )

    def count_running(self) -> Counter[str]:
        running = (each for each in self.sequences if each.slot is not None)
        return Counter(each.flow.client.name for each in running)

    def run_steps(self, number: int) -> None:
        for _ in range(number):
            assert self.step() is not None
        self.scheduler.check()

    def count_steps_to_first_token(self, sequence: Sequence) -> int:
        for number in range(3000):
            if sequence.output_token_ids:
                return number
            self.step()
        raise AssertionError("it gets no token")


@pytest.mark.parametrize("num_steps", [2, 100])
@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_a_client_does_not_wait_for_the_generations_of_another(
    max_num_seqs: int, num_steps: int
) -> None:
    """One of them has three times as many requests of 1,000 tokens as there are slots.

    Without preemptions between clients, the other one waits for more than 900 steps.
    """
    bench = Bench(max_num_seqs=max_num_seqs)
    for _ in range(3 * max_num_seqs):
        bench.ask(ANN, num_output=1000)
    bench.run_steps(num_steps)
    stranger = bench.ask(BOB, num_output=4)
    assert bench.count_steps_to_first_token(stranger) == 1
    assert bench.num_preemptions == 1
    # The slot goes back to the sequence that gave it, and no token is lost.
    victim = bench.sequences[max_num_seqs - 1]
    num_tokens = len(victim.output_token_ids)
    assert victim.slot is None
    bench.run_steps(5)
    assert stranger.is_ended
    assert len(victim.output_token_ids) > num_tokens
    assert victim.output_token_ids[-1] == count_up(
        victim.seed, len(victim.output_token_ids) - 1
    )


def test_requests_of_one_client_do_not_preempt_each_other() -> None:
    bench = Bench()
    for priority in (1, 0):
        for _ in range(16):
            bench.ask(ANN, priority=priority)
        bench.run_steps(100)
    assert bench.num_preemptions == 0


@pytest.mark.parametrize(("weight", "num_slots"), [(1.0, 4), (3.0, 6), (0.34, 2)])
def test_slots_are_shared_by_weight(weight: float, num_slots: int) -> None:
    bench = Bench()
    for _ in range(24):
        bench.ask(BOB)
    bench.run_steps(100)
    for _ in range(24):
        bench.ask(Client(name="ann", weight=weight))
    bench.run_steps(200)
    assert bench.count_running() == {"ann": num_slots, "bob": 8 - num_slots}
    # Each preemption gave Ann a slot, and none went back.
    assert bench.num_preemptions == num_slots


def test_a_share_that_is_not_used_is_shared_by_the_others() -> None:
    bench = Bench()
    for _ in range(16):
        bench.ask(ANN)
    bench.run_steps(10)
    bench.ask(CARL)
    for _ in range(16):
        bench.ask(BOB)
    bench.run_steps(200)
    assert bench.count_running() == {"ann": 4, "bob": 3, "carl": 1}


def test_the_request_with_the_lowest_priority_gives_its_slot() -> None:
    bench = Bench(max_num_seqs=3)
    first, victim, last = (bench.ask(ANN, priority=each) for each in (0, 1, -1))
    bench.run_steps(5)
    bench.ask(BOB)
    bench.run_steps(5)
    assert victim.slot is None
    assert first.slot is not None and last.slot is not None


@pytest.mark.parametrize("num_streams", [2, 4])
def test_a_client_that_has_used_more_waits(num_streams: int) -> None:
    """Bob's prompt was long, so Ann's streams go on until they have used as much."""
    bench = Bench(max_num_seqs=2, max_num_batched_tokens=2000)
    for _ in range(num_streams):
        bench.ask(ANN)
    bench.run_steps(2)
    bench.ask(BOB, num_prompt=1000, num_output=1)
    bench.run_steps(3)
    assert bench.count_running() == {"ann": 2}
    stranger = bench.ask(BOB, num_output=1)
    assert 150 < bench.count_steps_to_first_token(stranger) < 500


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_short_requests_let_streams_repeat_less_than_they_decode(
    prefix_caching: bool,
) -> None:
    """Bob sends one request after another, and each may take a slot."""
    bench = Bench(max_num_seqs=4, prefix_caching=prefix_caching)
    streams = [bench.ask(ANN, num_prompt=50) for _ in range(4)]
    bench.run_steps(10)
    for _ in range(300):
        bench.ask(BOB, num_output=1)
        bench.run_steps(2)
    assert bench.num_preemptions > 20
    assert all(len(each.output_token_ids) > 100 for each in streams)
    num_needed = sum(each.num_computed for each in bench.sequences if each.slot)
    num_needed += sum(each.num_tokens for each in bench.sequences if not each.slot)
    num_repeated = bench.scheduler.counters().num_computed_tokens - num_needed
    work = sum(
        1 + number / 64 for each in streams for number in range(50, each.num_tokens)
    )
    assert num_repeated < work + sum(each.num_tokens for each in streams)


@pytest.mark.parametrize("num_streams", [0, 8])
def test_prompts_of_clients_take_turns(num_streams: int) -> None:
    """Carl's prompt comes after two of Ann's, whether she finds slots or takes them.

    Her weight is so large that many prompts would be little use.
    """
    bench = Bench(max_num_batched_tokens=64)
    for _ in range(num_streams):
        bench.ask(BOB)
        bench.step()
    for _ in range(8):
        bench.ask(Client(name="ann", weight=100.0), num_prompt=500, num_output=4)
    bench.run_steps(3)
    prompt = bench.ask(Client(name="carl", weight=100.0), num_prompt=500)
    # Each prompt takes eight or nine steps beside the streams.
    assert bench.count_steps_to_first_token(prompt) < 28


def test_more_clients_than_slots_take_turns() -> None:
    """Each of six clients has one endless stream, and there are two slots."""
    bench = Bench(max_num_seqs=2)
    streams = [bench.ask(Client(name=str(number))) for number in range(6)]
    bench.run_steps(100)
    assert all(each.output_token_ids for each in streams)
    bench.run_steps(900)
    counts = [len(each.output_token_ids) for each in streams]
    assert max(counts) < 1.3 * min(counts)
    # A turn is at least as much work as the context, whose tokens count a 64th each.
    assert bench.num_preemptions < 2 * 1000 / 25


def test_the_only_slot_is_not_taken_from_a_prompt_that_is_computed() -> None:
    bench = Bench(max_num_seqs=1, max_num_batched_tokens=64)
    long = bench.ask(ANN, num_prompt=640)
    bench.step()
    stranger = bench.ask(BOB)
    bench.run_steps(10)
    assert long.output_token_ids
    assert 55 < bench.count_steps_to_first_token(stranger) < 65


def test_an_interrupted_prompt_pays_only_for_what_was_computed() -> None:
    queue = SharedQueue()
    bench = Bench()
    prompt, stranger = bench.ask(ANN, num_prompt=1000), bench.ask(BOB)
    queue.enter(prompt)
    queue.enter(stranger)
    queue.charge_prompt(prompt)
    assert queue.shares.get_used(ANN) == 1000
    prompt.num_computed = 300
    queue.refund_prompt(prompt)
    assert queue.shares.get_used(ANN) == 300


def test_an_interrupted_prompt_is_counted_once() -> None:
    """Blocks that it computed itself are not hits when it finds them again."""
    bench = Bench(max_num_seqs=2)
    prompt = bench.ask(ANN, num_prompt=4000)
    stream = bench.ask(ANN)
    bench.run_steps(4)
    strangers = [bench.ask(BOB, num_output=4) for _ in range(2)]
    bench.run_steps(1)
    assert bench.num_preemptions == 1
    bench.run_steps(40)
    assert all(each.is_ended for each in strangers)
    assert prompt.output_token_ids and stream.output_token_ids
    assert prompt.num_cached_tokens == 0
    counters = bench.scheduler.counters()
    assert counters.num_prompt_tokens == 4000 + 3 * 8
    assert counters.num_prefix_hit_tokens == 0


def test_a_client_that_fills_the_cache_makes_room_for_another() -> None:
    """Four of Ann's streams hold twelve of twenty blocks, and may need the others soon."""
    bench = Bench(num_blocks=20, max_num_seqs=16, max_model_len=160)
    streams = [bench.ask(ANN, num_prompt=40, num_output=60) for _ in range(10)]
    bench.run_steps(4)
    assert bench.num_preemptions == 0
    num_running = bench.count_running()["ann"]
    stranger = bench.ask(BOB, num_prompt=70, num_output=4)
    assert bench.count_steps_to_first_token(stranger) == 1
    assert streams[num_running - 1].slot is None
    assert bench.num_preemptions <= 2


def test_one_long_stream_leaves_the_cache_after_its_turn() -> None:
    bench = Bench(num_blocks=50, max_num_seqs=4, max_model_len=800)
    long = bench.ask(ANN, num_prompt=640, num_output=100)
    bench.run_steps(4)
    assert long.output_token_ids
    stranger = bench.ask(BOB, num_prompt=160, num_output=4)
    assert 50 < bench.count_steps_to_first_token(stranger) < 65
    assert long.slot is None


def test_a_request_beyond_its_share_of_the_cache_waits() -> None:
    """Ann's streams would have to give more than half of the cache."""
    bench = Bench(num_blocks=140, max_num_seqs=32, max_model_len=1500)
    streams = [bench.ask(ANN, num_prompt=32, num_output=60) for _ in range(20)]
    bench.run_steps(5)
    giant = bench.ask(BOB, num_prompt=1300, num_output=4)
    bench.run_steps(50)
    assert giant.slot is None
    assert bench.num_preemptions == 0
    while not giant.is_ended:
        bench.step()
    assert all(each.is_ended for each in streams)


def count_calls_of_a_claim(num_streams: int, num_own: int) -> int:
    """Return the calls of a step in which a prompt lacks more blocks than it may claim."""
    bench = Bench(
        num_blocks=14 * num_streams,
        max_num_seqs=2 * num_streams,
        max_num_batched_tokens=10_000,
        max_model_len=160 * num_streams,
    )
    for _ in range(num_own):
        bench.ask(BOB)
    for _ in range(num_streams):
        bench.ask(ANN, num_prompt=150)
    bench.run_steps(12)
    giant = bench.ask(BOB, num_prompt=135 * num_streams)
    bench.run_steps(2)
    num_calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    try:
        bench.step()
    finally:
        sys.setprofile(None)
    assert giant.slot is None and bench.num_preemptions == 0
    return num_calls


@pytest.mark.parametrize("num_own", [0, 1])
def test_the_cost_of_a_claim_that_fails_grows_with_the_streams(num_own: int) -> None:
    """It does not grow with their square. The claim is made again in each step."""
    few, many = (count_calls_of_a_claim(number, num_own) for number in (10, 40))
    assert many < 4.5 * few


def test_blocks_that_streams_share_count_once() -> None:
    """Ann's streams share a prompt of twenty blocks; Carl's hold more blocks together."""
    bench = Bench(num_blocks=90, max_num_seqs=16, max_model_len=1400)
    ann = [bench.ask(ANN, num_prompt=322, num_shared=320)]
    bench.run_steps(3)
    ann += [bench.ask(ANN, num_prompt=322, num_shared=320) for _ in range(5)]
    carl = [bench.ask(CARL, num_prompt=160) for _ in range(4)]
    bench.run_steps(10)
    assert bench.count_running() == {"ann": 6, "carl": 4}
    assert bench.scheduler._running.find_last() is carl[-1]
    # They have used as much as a new client.
    bench.scheduler._waiting.shares.charge(ANN, 1000)
    bench.scheduler._waiting.shares.charge(CARL, 1000)
    stranger = bench.ask(BOB, num_prompt=240, num_output=4)
    assert bench.count_steps_to_first_token(stranger) == 1
    assert all(each.slot is not None for each in ann)
    assert carl[-1].slot is None


def test_a_client_without_a_slot_has_a_turn_if_no_share_is_free() -> None:
    """Ann has two slots of three, but has used less than Bob, and Carl has used more."""
    bench = Bench(max_num_seqs=3, max_num_batched_tokens=4000)
    for _ in range(2):
        bench.ask(ANN)
    bench.run_steps(2)
    long = bench.ask(CARL, num_prompt=3000)
    bench.run_steps(2)
    stranger = bench.ask(BOB, num_output=4)
    # Each token of Carl is as much work as 48 others, and his context has 3,000.
    assert 55 < bench.count_steps_to_first_token(stranger) < 70
    assert long.slot is None


def test_a_token_that_is_computed_again_is_no_new_prompt() -> None:
    bench = Bench()
    for _ in range(8):
        bench.ask(ANN)
    bench.ask(BOB)
    bench.run_steps(10)
    [stream] = (each for each in bench.sequences if each.flow.client is BOB)
    # As if it had found all but the last token, and the device had skipped that one.
    stream.num_found = stream.num_computed
    stranger = bench.ask(BOB)
    bench.step()
    assert stranger.slot is not None


@settings(max_examples=examples(30), deadline=None)
@given(
    max_num_seqs=st.integers(1, 6),
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1, 8), st.integers(1, 24), st.integers(0, 9)
        ),
        min_size=1,
        max_size=6,
    ),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=4, max_size=4),
)
def test_no_slot_goes_to_and_fro(
    max_num_seqs: int,
    arrivals: list[tuple[int, int, int, int]],
    weights: list[float],
) -> None:
    """The loser of a slot still has as many as the winner, unless it is a turn.

    And there are no turns where each client can have a slot: once no request comes, each
    slot changes hands once at most.

    Args:
      arrivals: the client, its streams, their prompts, and the steps after them.
    """
    bench = Bench(max_num_seqs=max_num_seqs, num_blocks=100, max_model_len=1600)
    for index, num_streams, num_prompt, num_steps in arrivals:
        for _ in range(num_streams):
            bench.ask(Client(name=str(index), weight=weights[index]), num_prompt)
        bench.run_steps(num_steps)
    begin = bench.num_preemptions
    for _ in range(80):
        num_preemptions, before = bench.num_preemptions, bench.count_running()
        bench.step()
        after = bench.count_running()
        if bench.num_preemptions != num_preemptions + 1:
            continue
        [winner], [loser] = after - before, before - after
        level = after[winner] / weights[int(winner)]
        assert after[winner] == 1 or after[loser] / weights[int(loser)] >= level
    names = {each.flow.client.name for each in bench.sequences}
    if len(names) <= max_num_seqs and len({weights[int(name)] for name in names}) == 1:
        assert bench.num_preemptions - begin <= max_num_seqs
