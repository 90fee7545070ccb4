"""A step that others wait for, or may come to wait for, takes no longer than it may."""

from __future__ import annotations

from itertools import pairwise
import math

import pytest
from scheduling import Loop, make_scheduler, make_sequence

from trioserve.scheduler.generation.sequence import Flow
from trioserve.testing.fake_device import FakeDevice
from trioserve.types.output import TokenDelta
from trioserve.types.plan import StepPlan, StepRow

BLOCK_SIZE = 16
TARGET = 0.25


def seconds_of_row(row: StepRow) -> float:
    """Return about the time of SmolLM2-135M on two cores."""
    pairs = row.num_tokens * (row.start + row.num_tokens / 2)
    return 0.001 + 0.0006 * row.num_tokens + 3e-6 * row.start + 3e-7 * pairs


def seconds_of(plan: StepPlan) -> float:
    return 0.02 + sum(map(seconds_of_row, plan.rows))


# The longest time of a chunk of one block, after 8,000 tokens.
BLOCK_SECONDS = seconds_of_row(
    StepRow(slot=0, start=8000, num_tokens=BLOCK_SIZE, new_block_ids=(), sample=False)
)


class Server(Loop):
    """A scheduler and a device in virtual time, `depth` steps in flight.

    Attributes:
      now: seconds since the start.
      token_times: the times of each sequence's tokens.
    """

    def __init__(
        self, max_step_seconds: float = TARGET, *, depth: int = 2, **changes: int
    ) -> None:
        options = {
            "num_blocks": 32_768,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 512,
            "max_model_len": 8192,
            "max_step_seconds": max_step_seconds,
        }
        device = FakeDevice(block_size=BLOCK_SIZE)
        scheduler = make_scheduler(**(options | changes))
        super().__init__(scheduler, device, depth, checks=False)
        self.now = 0.0
        self.token_times: dict[int, list[float]] = {}

    def ask(
        self, num_sequences: int = 1, *, prompt_len: int = 10, max_tokens: int = 10_000
    ) -> list[int]:
        """Add a request; return the numbers of its sequences."""
        flow = Flow()
        begin = len(self.sequences) + 1
        numbers = [*range(begin, begin + num_sequences)]
        for number in numbers:
            first = 10_000 * number
            self.add(
                make_sequence(
                    number,
                    flow=flow,
                    prompt_token_ids=tuple(range(first, first + prompt_len)),
                    max_tokens=max_tokens,
                )
            )
        return numbers

    def measure(self, plan: StepPlan) -> float:
        seconds = seconds_of(plan)
        self.now += seconds
        return seconds

    def drain_one(self) -> list[TokenDelta]:
        outputs = super().drain_one()
        for output in outputs:
            if output.token_ids:
                self.token_times.setdefault(output.sequence_id, []).append(self.now)
        return outputs

    def run_step(self) -> StepPlan:
        plan = self.step()
        assert plan is not None
        return plan

    def run_until_token(self, number: int) -> None:
        while number not in self.token_times:
            self.run_step()

    def longest_gap(self, number: int, since: float) -> float:
        times = [time for time in self.token_times[number] if time >= since]
        return max(after - before for before, after in pairwise(times))


def measure_long_prompt(server: Server) -> tuple[float, float]:
    """Return a stream's longest gap beside a prompt of 8,000 tokens, and its time."""
    [stream] = server.ask()
    for _ in range(20):
        server.run_step()
    begin = server.now
    [long] = server.ask(prompt_len=8000)
    server.run_until_token(long)
    return server.longest_gap(stream, begin), server.now - begin


@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_prompt_does_not_stretch_a_stream(depth: int) -> None:
    gap, seconds = measure_long_prompt(Server(depth=depth))
    assert gap <= TARGET + BLOCK_SECONDS
    unbounded, at_best = measure_long_prompt(Server(math.inf, depth=depth))
    assert unbounded > 5 * TARGET
    # The difference is the cost of the stream's rows and of more steps.
    assert seconds < 1.4 * at_best


def test_costs_learned_without_streams_are_used_at_once() -> None:
    server = Server()
    [first] = server.ask(prompt_len=8000)
    server.run_until_token(first)
    gap, _ = measure_long_prompt(server)
    assert gap <= TARGET + BLOCK_SECONDS


def seconds_to_read(server: Server, prompt_len: int = 3000) -> float:
    """Return the seconds of a prompt alone, after another one has shown the costs."""
    for _ in range(2):
        begin = server.now
        [long] = server.ask(prompt_len=prompt_len, max_tokens=1)
        server.run_until_token(long)
    return server.now - begin


@pytest.mark.parametrize("num_done", [0, 1, 3, 7])
@pytest.mark.parametrize("depth", [1, 2])
def test_who_comes_while_a_lone_prompt_is_read_waits_for_short_steps(
    num_done: int, depth: int
) -> None:
    """It waits for the steps in flight, and its own step is as short as they are."""
    server = Server(depth=depth, max_num_batched_tokens=2048)
    seconds_to_read(server)
    [long] = server.ask(prompt_len=3000, max_tokens=1)
    for _ in range(num_done):
        server.run_step()
    begin = server.now
    [short] = server.ask(max_tokens=1)
    server.run_until_token(short)
    assert server.now - begin <= (depth + 1) * (TARGET + BLOCK_SECONDS)
    assert long not in server.token_times


def test_the_first_prompt_of_all_is_read_in_short_steps_too() -> None:
    server = Server(max_num_batched_tokens=2048)
    [long] = server.ask(prompt_len=3000, max_tokens=1)
    while long not in server.token_times:
        assert seconds_of(server.run_step()) <= TARGET + BLOCK_SECONDS


def test_a_lone_prompt_is_read_almost_as_soon_in_short_steps() -> None:
    at_best = seconds_to_read(Server(math.inf, max_num_batched_tokens=2048))
    assert seconds_to_read(Server(max_num_batched_tokens=2048)) < 1.15 * at_best


def test_a_device_with_slow_steps_reads_a_lone_prompt_with_most_of_its_speed() -> None:
    """A step has a fixed 0.02 s. That is above the limit, and the prompt has 0.06 more."""
    at_best = seconds_to_read(Server(math.inf), prompt_len=500)
    assert seconds_to_read(Server(0.01), prompt_len=500) < 4 / 3 * 1.1 * at_best


def test_a_requests_own_streams_wait_for_no_longer_steps_either() -> None:
    """Whoever comes waits for such a step, too."""
    server = Server()
    server.ask(4, prompt_len=3000)
    while len(server.token_times) < 4:
        assert seconds_of(server.run_step()) <= TARGET + BLOCK_SECONDS


def test_a_request_with_many_sequences_does_not_slow_a_stream() -> None:
    """Decoding 128 rows of 1,500 tokens takes 0.9 s, if the request is alone."""
    server = Server()
    many = server.ask(127, prompt_len=1500)
    server.run_until_token(many[-1])
    assert seconds_of(server.run_step()) > 3 * TARGET
    [stream] = server.ask()
    server.run_until_token(stream)
    begin = server.now
    for _ in range(60):
        server.run_step()
    assert server.longest_gap(stream, begin) <= TARGET * 1.05
    # All sequences of the request go on, in turns.
    counts = [len([t for t in server.token_times[n] if t > begin]) for n in many]
    assert min(counts) > 0
    assert max(counts) - min(counts) <= 1
    # No time is left unused.
    assert server.now - begin > 60 * 0.9 * TARGET


def test_every_request_has_a_row_in_each_step() -> None:
    """No stream would be faster if their rows took turns."""
    server = Server()
    numbers = [server.ask(prompt_len=1500)[0] for _ in range(100)]
    while len(server.token_times) < 100:
        server.run_step()
    plan = server.run_step()
    plan = server.run_step()
    assert len(plan.rows) == len(numbers)
    assert seconds_of(plan) > TARGET


def test_prompts_have_three_quarters_of_a_step_that_is_full() -> None:
    server = Server(max_num_batched_tokens=2048)
    for _ in range(100):
        server.ask(prompt_len=1500)
    while len(server.token_times) < 100:
        server.run_step()
    [late] = server.ask(prompt_len=6000)
    shares = []
    while late not in server.token_times:
        plan = server.run_step()
        decoding = [row for row in plan.rows if row.num_tokens == 1]
        seconds = 0.02 + sum(map(seconds_of_row, decoding))
        assert seconds > TARGET
        shares.append(1 - seconds / seconds_of(plan))
    # Two steps were planned before the prompt came, and the last one has its end.
    assert max(shares) <= 0.76
    assert min(shares[2:-1]) > 0.65


@pytest.mark.parametrize("target", [1e-9, 0.01])
def test_a_target_that_cannot_be_met_ends_prompts_all_the_same(target: float) -> None:
    server = Server(target)
    server.ask()
    server.run_step()
    [long] = server.ask(prompt_len=800)
    plans = []
    while long not in server.token_times:
        plans.append(server.run_step())
    # Each step computes one block.
    assert len(plans) <= 800 / BLOCK_SIZE + 3


def test_a_short_prompt_goes_first_where_a_step_has_room_for_one_block() -> None:
    """It does so only in every second step; the long prompt goes on in the others."""
    server = Server(1e-9)
    server.ask()
    server.run_step()
    [long] = server.ask(prompt_len=800)
    num_steps = 0
    while long not in server.token_times:
        [short] = server.ask(max_tokens=1)
        begin = num_steps
        while short not in server.token_times:
            server.run_step()
            num_steps += 1
        # Two steps are in flight when it comes; the third may be the long prompt's.
        assert num_steps - begin <= 5
    assert num_steps <= 2 * 800 / BLOCK_SIZE + 5


def test_chunks_that_were_cut_by_time_end_with_a_block() -> None:
    """Others then find all of their blocks in the prefix cache."""
    server = Server()
    server.ask()
    server.run_step()
    server.ask(prompt_len=4000)
    chunks = [
        row for _ in range(30) for row in server.run_step().rows if row.num_tokens > 1
    ]
    assert len(chunks) > 10
    assert all(row.end % BLOCK_SIZE == 0 or row.sample for row in chunks)


@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_stage_has_its_part_of_the_time(num_stages: int) -> None:
    """A stream gets a token each time that all stages have run a step."""
    server = Server(depth=num_stages + 1, num_stages=num_stages)
    server.ask(2 * num_stages)
    for _ in range(40):
        server.run_step()
    server.ask()
    [long] = server.ask(prompt_len=8000)
    plans = []
    while long not in server.token_times:
        plans.append(server.run_step())
    longest = max(map(seconds_of, plans))
    assert longest <= TARGET / num_stages + BLOCK_SECONDS
