"""The scheduler's invariants under random arrivals, lengths, aborts and shortages."""

from __future__ import annotations

from collections import deque
import math

from examples import examples
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.scheduler.generation.spans import Spans
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.client import Client
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams
from trioserve.types.windows import count_window_blocks

BLOCK_SIZE = 4

# Two of them are the same client, whose weight has changed.
CLIENTS = (
    Client(),
    Client(name="ann"),
    Client(name="bob", weight=3.0),
    Client(name="bob", weight=0.5),
)


def seconds_of(plan: StepPlan) -> float:
    pairs = sum(row.num_tokens * row.end for row in plan.rows)
    return 0.002 + 0.001 * plan.num_tokens + 0.0001 * pairs


def list_images(family: int, longest: int) -> list[tuple[int, int]]:
    """Return the images of a family of prompts: several behind each other, and one later."""
    if family < 3:
        return []
    lengths = [max(1, longest - family + 3), longest, longest]
    begins = [1 + family, 1 + family + lengths[0], 5 + family + 2 * longest]
    return [(begin, begin + length) for begin, length in zip(begins, lengths)]


def is_decoding(sequence: Sequence) -> bool:
    """Return whether only one token is left to compute, and the next depends on it."""
    return (
        sequence.num_planned < sequence.max_num_tokens and sequence.num_uncomputed == 1
    )


class SchedulerMachine(RuleBasedStateMachine):
    """Drives one scheduler; FakeDevice asserts that every plan can be computed."""

    @initialize(
        num_blocks=st.integers(4, 24),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 12),
        depth=st.integers(1, 5),
        num_stages=st.integers(1, 4),
        max_step_seconds=st.sampled_from([math.inf, 0.02, 0.005, 1e-9]),
        num_checkpoints=st.sampled_from([None, 0, 1, 3, 9]),
        window=st.sampled_from([None, 1, 3, 4, 10, 30]),
        num_spare_window_blocks=st.integers(0, 12),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        spare_budget: int,
        depth: int,
        num_stages: int,
        max_step_seconds: float,
        num_checkpoints: int | None,
        window: int | None,
        num_spare_window_blocks: int,
    ) -> None:
        self.budget = max_num_seqs + spare_budget
        self.max_num_seqs = max_num_seqs
        self.max_image = spare_budget + 1
        self.max_model_len = num_blocks * BLOCK_SIZE
        self.num_stages = num_stages
        self.depth = min(depth, max(3, num_stages + 1))
        num_window_blocks = None
        if window is not None:
            least = count_window_blocks(window, self.budget, BLOCK_SIZE)
            num_window_blocks = min(num_blocks, least) + num_spare_window_blocks
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_model_len=self.max_model_len,
            num_stages=num_stages,
            max_step_seconds=max_step_seconds,
            num_checkpoints=num_checkpoints,
            num_window_blocks=num_window_blocks,
            window=window,
        )
        self.fresh = self.scheduler.statistics()
        self.device = FakeDevice(
            block_size=BLOCK_SIZE,
            reads_blocks=True,
            window=window,
            keeps_states=num_checkpoints is not None,
        )
        self.in_flight: deque[StepPlan] = deque()
        self.living: dict[SequenceId, Sequence] = {}
        self.tokens: dict[SequenceId, list[int]] = {}
        self.num_added = 0

    # With more, a history would be arrivals for the most part, and no step.
    @precondition(lambda self: len(self.living) < 20)
    @rule(
        prompt_len=st.integers(1, 40),
        max_tokens=st.integers(1, 30),
        priority=st.integers(-1, 1),
        family=st.integers(0, 2),
        num_sequences=st.integers(1, 4),
        client=st.sampled_from(CLIENTS),
        has_images=st.booleans(),
    )
    def arrive(
        self,
        prompt_len: int,
        max_tokens: int,
        priority: int,
        family: int,
        num_sequences: int,
        client: Client,
        has_images: bool,
    ) -> None:
        flow = Flow(priority, client=client)
        for _ in range(num_sequences):
            self.add(flow, prompt_len, max_tokens, 3 * has_images + family)

    def add(self, flow: Flow, prompt_len: int, max_tokens: int, family: int) -> None:
        self.num_added += 1
        sequence_id = SequenceId(self.num_added)
        prompt_len = min(prompt_len, self.max_model_len - 1)
        images = list_images(family, self.max_image)
        prompt_len = Spans(images).step_back(prompt_len)
        sequence = Sequence(
            sequence_id=sequence_id,
            # Prompts of a family begin alike, so that blocks are shared.
            prompt_token_ids=tuple(100 * family + i for i in range(prompt_len)),
            sampling=SamplingParams(max_tokens=max_tokens),
            seed=self.num_added,
            arrival=self.num_added,
            flow=flow,
            spans=Spans([each for each in images if each[1] <= prompt_len]),
        )
        self.living[sequence_id] = sequence
        self.tokens[sequence_id] = []
        self.scheduler.add(sequence)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.living)))
        del self.living[sequence_id]
        self.scheduler.abort(sequence_id)

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule()
    def schedule(self) -> None:
        decoding = {
            number: sequence
            for number, sequence in self.living.items()
            if sequence.slot is not None and is_decoding(sequence)
        }
        sampled_in = {number: each.sampled_in for number, each in self.living.items()}
        num_preemptions = self.scheduler.counters().num_preemptions
        plan = self.scheduler.schedule()
        if plan is None:
            assert self.in_flight or not self.living, "work is planned if there is any"
            return
        assert 0 < plan.num_tokens <= self.budget
        assert len(plan.rows) <= self.max_num_seqs
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        self.in_flight.append(plan)
        started = {start.slot for start in plan.starts}
        by_slot = {sequence.slot: sequence for sequence in self.living.values()}
        planned = [by_slot[row.slot] for row in plan.rows]
        num_decoded = 0
        for row, sequence in zip(plan.rows, planned):
            assert not sequence.spans.is_inside(row.start), "a prefix divides an image"
            assert not sequence.spans.is_inside(row.end), "a chunk divides an image"
            number = sequence.sequence_id
            num_decoded += number in decoding and sequence.slot not in started
            if sequence.num_computed > sequence.num_tokens:
                waited = plan.step_id - sampled_in[number]
                assert waited >= self.num_stages, "no stage waits for a token"
        assert num_decoded <= -(-len(decoding) // self.num_stages)
        if (
            self.num_stages == 1
            and self.scheduler.counters().num_preemptions == num_preemptions
        ):
            clients = {each.flow.client.name for each in decoding.values()}
            assert clients <= {each.flow.client.name for each in planned}
            flows = {sequence.flow for sequence in decoding.values()}
            if len(clients) == 1:
                assert flows <= {
                    each.flow for each in planned
                }, "each request has a row"

    @precondition(lambda self: self.in_flight)
    @rule()
    def update(self) -> None:
        plan = self.in_flight.popleft()
        result = self.device.step(plan)
        for output in self.scheduler.update(plan, result, seconds_of(plan)):
            tokens = self.tokens[output.sequence_id]
            tokens.extend(output.token_ids)
            seed = output.sequence_id
            assert tokens == [count_up(seed, i) for i in range(len(tokens))]
            if output.finish_reason is not None:
                sequence = self.living.pop(output.sequence_id)
                room = self.max_model_len - len(sequence.prompt_token_ids)
                assert len(tokens) == min(room, sequence.sampling.max_tokens or 0)

    @rule(num_steps=st.integers(1, 20))
    def run(self, num_steps: int) -> None:
        """Step often, so that sequences arrive and end while others are preempted."""
        for _ in range(num_steps):
            if len(self.in_flight) == self.depth:
                self.update()
            self.schedule()

    @invariant()
    def nothing_is_lost_shared_wrongly_or_freed_twice(self) -> None:
        self.scheduler.check()

    def teardown(self) -> None:
        """Check that all sequences end in a bounded number of steps: none starves."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            while self.in_flight:
                self.update()
            self.schedule()
            if not self.in_flight:
                break
        assert not self.living
        self.scheduler.check()
        assert self.scheduler.statistics() == self.fresh


SchedulerMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None
)
test_random_histories_keep_every_invariant = SchedulerMachine.TestCase
