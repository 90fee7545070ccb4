"""Requests take turns, not sequences."""

from __future__ import annotations

from collections import Counter, deque
import pickle
from typing import Any

import pytest

from trioserve.scheduler.generation.queue import WaitingQueue
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams


def make_sequence(number: int, flow: Flow | None = None, **changes: Any) -> Sequence:
    fields: dict[str, Any] = {
        "prompt_token_ids": (1, 2),
        "sampling": SamplingParams(max_tokens=4),
    }
    return Sequence(
        sequence_id=SequenceId(number),
        arrival=number,
        seed=number,
        flow=flow,
        **(fields | changes),
    )


class Bench:
    """A scheduler and a device whose steps take a second.

    Attributes:
      running: the number of running sequences, by the request's number.
      first_steps: the step in which each request had its first row.
    """

    def __init__(self, **changes: int) -> None:
        options = {
            "num_blocks": 1024,
            "block_size": 4,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 1024,
        }
        self.scheduler = Scheduler(**(options | changes))
        self.device = FakeDevice(block_size=4, reads_blocks=True)
        self.first_steps: dict[int, int] = {}
        self.num_steps = 0
        self._requests: dict[Flow, int] = {}
        self._num_sequences = 0
        self._sequences: list[Sequence] = []

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
            self._num_sequences += 1
            begin = 1000 * (self._num_sequences if first is None else first)
            sequence = make_sequence(
                self._num_sequences,
                flow,
                prompt_token_ids=tuple(range(begin, begin + prompt_len)),
                sampling=SamplingParams(max_tokens=max_tokens),
            )
            self._sequences.append(sequence)
            self.scheduler.add(sequence)
        return number

    @property
    def running(self) -> Counter[int]:
        return Counter({n: flow.num_running for flow, n in self._requests.items()})

    def step(self) -> dict[int, int]:
        """Run a step; return the number of tokens computed for each request."""
        plan = self.scheduler.schedule()
        assert plan is not None
        self.num_steps += 1
        num_tokens: Counter[int] = Counter()
        flows = {each.slot: each.flow for each in self._sequences}
        for row in plan.rows:
            number = self._requests[flows[row.slot]]
            num_tokens[number] += row.num_tokens
            self.first_steps.setdefault(number, self.num_steps)
        self.scheduler.update(plan, self.device.step(plan), seconds=1.0)
        self.scheduler.check()
        return num_tokens

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.scheduler.statistics().num_waiting + sum(self.running.values()):
                return
            self.step()
        raise AssertionError("the sequences never end")


def test_the_next_free_slot_goes_to_the_request_that_has_none() -> None:
    bench = Bench()
    many = bench.ask(1024)
    bench.step()
    assert bench.running[many] == 8
    one = bench.ask()
    while bench.running[many] == 8:
        bench.step()
    # All eight end in the same step, and eight slots are free.
    assert bench.step()[one] > 0
    bench.run()


def test_two_requests_with_many_sequences_share_the_slots() -> None:
    bench = Bench()
    first = bench.ask(200, max_tokens=5)
    bench.step()
    second = bench.ask(200, max_tokens=5)
    for _ in range(20):
        bench.step()
        num_running = bench.running
    assert num_running == {first: 4, second: 4}
    bench.run()


def test_requests_with_one_sequence_are_served_in_the_order_of_arrival() -> None:
    bench = Bench(max_num_seqs=2)
    numbers = [bench.ask(max_tokens=3) for _ in range(9)]
    bench.run()
    assert sorted(numbers, key=bench.first_steps.__getitem__) == numbers


def test_new_requests_do_not_keep_a_large_one_waiting_for_ever() -> None:
    """At least ten others wait at any time, and one is served in each step."""
    bench = Bench(max_num_seqs=4)
    large = bench.ask(20, max_tokens=4)
    num_tokens = 0
    while num_tokens < 20 * (2 + 3):
        while bench.scheduler.statistics().num_waiting < 16 + 10:
            bench.ask(max_tokens=4)
        num_tokens += bench.step()[large]
        # The first four are admitted at once, and one of the others in each round.
        assert bench.num_steps <= 4 + 16 * (16 + 10 + 4)


def test_the_request_with_the_most_sequences_gives_its_blocks_back() -> None:
    """It does so although it came first, before a request with a single sequence."""
    bench = Bench(num_blocks=48, max_model_len=128, max_num_seqs=8)
    large = bench.ask(7, prompt_len=16, max_tokens=60)
    bench.step()
    small = bench.ask(prompt_len=16, max_tokens=60)
    num_steps = 0
    while bench.running[small] or not num_steps:
        bench.step()
        num_steps += 1
    assert bench.scheduler.counters().num_preemptions > 0
    # The small one was never preempted: it got a token in each step.
    assert num_steps == 60
    assert bench.running[large] > 0
    bench.run()


def test_a_short_prompt_does_not_wait_until_a_long_one_is_computed() -> None:
    bench = Bench()
    long = bench.ask(prompt_len=1000)
    bench.step()
    short = bench.ask(prompt_len=30)
    assert bench.step() == {long: 34, short: 30}


def test_a_prompt_gets_the_tokens_that_no_other_request_needs() -> None:
    bench = Bench()
    both = bench.ask(2, prompt_len=200)
    assert bench.step() == {both: 64}
    shorter = bench.ask(prompt_len=60)
    assert bench.step() == {both: 32, shorter: 32}


def test_a_prompt_that_is_cached_but_for_its_end_is_a_short_one() -> None:
    bench = Bench()
    bench.ask(prompt_len=400, max_tokens=1)
    bench.run()
    long = bench.ask(prompt_len=300)
    bench.step()
    again = bench.ask(prompt_len=410, first=1)
    assert bench.step() == {long: 54, again: 10}


def test_prompts_of_one_length_are_computed_one_after_the_other() -> None:
    bench = Bench()
    numbers = [bench.ask(prompt_len=640, max_tokens=1) for _ in range(6)]
    ended: dict[int, int] = {}
    while len(ended) < 6:
        bench.step()
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
    bench.run()
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
    in_flight: deque[StepPlan] = deque()
    scheduler = bench.scheduler
    counts: list[Counter[int]] = []
    small = None
    for number in range(60):
        if number == 10:
            small = bench.ask(50, max_tokens=6)
        while len(in_flight) < 3 and (plan := scheduler.schedule()) is not None:
            in_flight.append(plan)
        plan = in_flight.popleft()
        scheduler.update(plan, bench.device.step(plan), seconds=1.0)
        scheduler.check()
        if number > 30:
            counts.append(bench.running)
    assert small is not None
    assert max(count[large] for count in counts) <= 3
    assert max(count[small] for count in counts) <= 3


def test_a_long_prompt_leaves_half_of_a_step_to_all_shorter_ones_together() -> None:
    bench = Bench(max_num_batched_tokens=16, max_num_seqs=16)
    long = bench.ask(prompt_len=64)
    short = [bench.ask(prompt_len=2) for _ in range(6)]
    assert bench.step() == {long: 8, **dict.fromkeys(short[:4], 2)}


def test_a_long_prompt_has_every_other_step_however_many_short_ones_come() -> None:
    """A step is not cut in two if its half is less than a block."""
    bench = Bench(max_num_batched_tokens=6, max_num_seqs=6)
    long = bench.ask(prompt_len=64)
    shares = []
    for _ in range(8):
        bench.ask(prompt_len=6, max_tokens=1)
        shares.append(bench.step().get(long, 0))
    assert shares == [6, 0] * 4
