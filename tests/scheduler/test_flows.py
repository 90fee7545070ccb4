"""Requests take turns, not sequences."""

from __future__ import annotations

from collections import Counter
import pickle

import pytest
from scheduling import Loop, make_scheduler, make_sequence

from trioserve.scheduler.generation.sequence import Flow
from trioserve.scheduler.generation.shared_queue import WaitingQueue
from trioserve.types.ids import SequenceId


class Bench(Loop):
    """A scheduler and a device whose steps take a second.

    Attributes:
      running: the number of running sequences, by the request's number.
      first_steps: the step in which each request had its first row.
    """

    def __init__(self, **changes: int) -> None:
        options = {
            "num_blocks": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 1024,
        }
        scheduler = make_scheduler(**(options | changes))
        super().__init__(scheduler, checks=False, seconds=1.0)
        self.first_steps: dict[int, int] = {}
        self.num_steps = 0
        self._requests: dict[Flow, int] = {}

    def ask(
        self,
        num_sequences: int = 1,
        *,
        prompt_len: int = 2,
        max_tokens: int = 4,
        first: int | None = None,
    ) -> int:
        """Add a request; return its number.

        Args:
          first: the number of a sequence; the prompts begin with its prompt.
        """
        flow = Flow()
        number = self._requests[flow] = len(self._requests)
        for _ in range(num_sequences):
            index = len(self.sequences) + 1
            begin = 1000 * (index if first is None else first)
            self.add(
                make_sequence(
                    index,
                    flow=flow,
                    prompt_token_ids=tuple(range(begin, begin + prompt_len)),
                    max_tokens=max_tokens,
                )
            )
        return number

    @property
    def running(self) -> Counter[int]:
        return Counter({n: flow.num_running for flow, n in self._requests.items()})

    def count_tokens(self) -> dict[int, int]:
        """Run a step; return the number of tokens computed for each request."""
        [plan] = self.fill()
        self.num_steps += 1
        num_tokens: Counter[int] = Counter()
        flows = {each.slot: each.flow for each in self.sequences}
        for row in plan.rows:
            number = self._requests[flows[row.slot]]
            num_tokens[number] += row.num_tokens
            self.first_steps.setdefault(number, self.num_steps)
        self.drain_one()
        return num_tokens

    def end(self) -> None:
        """Run until all sequences have ended."""
        while self.scheduler.statistics().num_waiting or self.running.total():
            self.count_tokens()
        self.scheduler.check()


def test_the_next_free_slot_goes_to_the_request_that_has_none() -> None:
    bench = Bench()
    many = bench.ask(1024)
    bench.count_tokens()
    assert bench.running[many] == 8
    one = bench.ask()
    while bench.running[many] == 8:
        bench.count_tokens()
    # All eight end in the same step, and eight slots are free.
    assert bench.count_tokens()[one] > 0
    bench.end()


def test_two_requests_with_many_sequences_share_the_slots() -> None:
    bench = Bench()
    first = bench.ask(200, max_tokens=5)
    bench.count_tokens()
    second = bench.ask(200, max_tokens=5)
    for _ in range(20):
        bench.count_tokens()
        num_running = bench.running
    assert num_running == {first: 4, second: 4}
    bench.end()


def test_requests_with_one_sequence_are_served_in_the_order_of_arrival() -> None:
    bench = Bench(max_num_seqs=2)
    numbers = [bench.ask(max_tokens=3) for _ in range(9)]
    bench.end()
    assert sorted(numbers, key=bench.first_steps.__getitem__) == numbers


def test_new_requests_do_not_keep_a_large_one_waiting_for_ever() -> None:
    """At least ten others wait at any time, and one is served in each step."""
    bench = Bench(max_num_seqs=4)
    large = bench.ask(20, max_tokens=4)
    num_tokens = 0
    while num_tokens < 20 * (2 + 3):
        while bench.scheduler.statistics().num_waiting < 16 + 10:
            bench.ask(max_tokens=4)
        num_tokens += bench.count_tokens()[large]
        # The first four are admitted at once, and one of the others in each round.
        assert bench.num_steps <= 4 + 16 * (16 + 10 + 4)


def test_the_request_with_the_most_sequences_gives_its_blocks_back() -> None:
    """It does so although it came first, before a request with a single sequence."""
    bench = Bench(num_blocks=48, max_model_len=128, max_num_seqs=8)
    large = bench.ask(7, prompt_len=16, max_tokens=60)
    bench.count_tokens()
    small = bench.ask(prompt_len=16, max_tokens=60)
    num_steps = 0
    while bench.running[small] or not num_steps:
        bench.count_tokens()
        num_steps += 1
    assert bench.scheduler.counters().num_preemptions > 0
    # The small one was never preempted: it got a token in each step.
    assert num_steps == 60
    assert bench.running[large] > 0
    bench.end()


def test_a_short_prompt_does_not_wait_until_a_long_one_is_computed() -> None:
    bench = Bench()
    long = bench.ask(prompt_len=1000)
    bench.count_tokens()
    short = bench.ask(prompt_len=30)
    assert bench.count_tokens() == {long: 34, short: 30}


def test_a_prompt_gets_the_tokens_that_no_other_request_needs() -> None:
    bench = Bench()
    both = bench.ask(2, prompt_len=200)
    assert bench.count_tokens() == {both: 64}
    shorter = bench.ask(prompt_len=60)
    assert bench.count_tokens() == {both: 32, shorter: 32}


def test_a_prompt_that_is_cached_but_for_its_end_is_a_short_one() -> None:
    bench = Bench()
    bench.ask(prompt_len=400, max_tokens=1)
    bench.end()
    long = bench.ask(prompt_len=300)
    bench.count_tokens()
    again = bench.ask(prompt_len=410, first=1)
    assert bench.count_tokens() == {long: 54, again: 10}


def test_prompts_of_one_length_are_computed_one_after_the_other() -> None:
    bench = Bench()
    numbers = [bench.ask(prompt_len=640, max_tokens=1) for _ in range(6)]
    ended: dict[int, int] = {}
    while len(ended) < 6:
        bench.count_tokens()
        for number in numbers:
            if number not in ended and number in bench.first_steps:
                if not bench.running[number]:
                    ended[number] = bench.num_steps
    assert list(ended) == numbers
    assert list(ended.values()) == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_an_abort_in_the_line_moves_the_others_up(max_num_seqs: int) -> None:
    bench = Bench(max_num_seqs=max_num_seqs)
    large = bench.ask(300)
    one = bench.ask()
    for number in range(5, 301):
        bench.scheduler.abort(SequenceId(number))
    assert bench.scheduler.statistics().num_waiting == 5
    bench.end()
    assert {large, one} == set(bench.first_steps)


def test_old_entries_of_a_request_do_not_pile_up() -> None:
    """Each change of a request's place adds an entry to the queue."""
    queue = WaitingQueue()
    first, changing = make_sequence(0), make_sequence(1)
    queue.push(first)
    queue.push(changing)
    for number in range(10_000):
        changing.flow.num_running = 1 + number % 5
        queue.update(changing.flow)
    assert queue.peek() is first
    assert len(pickle.dumps(queue)) < 10_000


def test_steps_in_flight_do_not_change_whose_turn_it_is() -> None:
    bench = Bench(max_num_seqs=4)
    large = bench.ask(100, max_tokens=6)
    bench.depth = 3
    counts: list[Counter[int]] = []
    small = None
    for number in range(60):
        if number == 10:
            small = bench.ask(50, max_tokens=6)
        bench.step()
        if number > 30:
            counts.append(bench.running)
    assert small is not None
    assert max(count[large] for count in counts) <= 3
    assert max(count[small] for count in counts) <= 3


def test_a_long_prompt_leaves_half_of_a_step_to_all_shorter_ones_together() -> None:
    bench = Bench(max_num_batched_tokens=16, max_num_seqs=16)
    long = bench.ask(prompt_len=64)
    short = [bench.ask(prompt_len=2) for _ in range(6)]
    assert bench.count_tokens() == {long: 8, **dict.fromkeys(short[:4], 2)}


def test_a_long_prompt_has_every_other_step_however_many_short_ones_come() -> None:
    """A step is not cut in two if its half is less than a block."""
    bench = Bench(max_num_batched_tokens=6, max_num_seqs=6)
    long = bench.ask(prompt_len=64)
    shares = []
    for _ in range(8):
        bench.ask(prompt_len=6, max_tokens=1)
        shares.append(bench.count_tokens().get(long, 0))
    assert shares == [6, 0] * 4
