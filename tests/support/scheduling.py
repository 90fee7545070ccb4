"""A scheduler, a fake device, and the loop between both, without a clock."""

from __future__ import annotations

from collections import deque
from typing import Any

from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.client import Client
from trioserve.types.ids import SequenceId
from trioserve.types.output import TokenDelta
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams

# The arguments of a Sequence; others are of its SamplingParams.
_FIELDS = {
    *(
        "arrival",
        "adapter_digest",
        "cache_salt",
        "embedded",
        "eos_token_ids",
        "prompt_token_ids",
    ),
    "spans",
}


def make_scheduler(**changes: Any) -> Scheduler:
    """Return a small scheduler."""
    options = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
    }
    return Scheduler(**(options | changes))


def make_sequence(
    number: int = 1,
    prompt_len: int = 4,
    *,
    priority: int = 0,
    client: Client = Client(),
    flow: Flow | None = None,
    **options: Any,
) -> Sequence:
    """Return a sequence whose prompt no other number has.

    Args:
      flow: of its request; None makes one.
      options: of the Sequence, or of its SamplingParams.
    """
    fields = {name: options.pop(name) for name in _FIELDS & options.keys()}
    first = 1000 * number
    default: dict[str, Any] = {
        "arrival": number,
        "prompt_token_ids": tuple(range(first, first + prompt_len)),
    }
    return Sequence(
        sequence_id=SequenceId(number),
        seed=number,
        flow=Flow(priority, client=client) if flow is None else flow,
        sampling=SamplingParams(**({"max_tokens": 8} | options)),
        **(default | fields),
    )


def make_device(*arguments: Any, block_size: int = 4, **options: Any) -> FakeDevice:
    """Return a device that asserts that each token reads its own context."""
    return FakeDevice(*arguments, block_size=block_size, reads_blocks=True, **options)


def count_to(count: int, *numbers: int) -> dict[int, list[int]]:
    """Return the first tokens that sequences of these numbers get."""
    return {n: [count_up(n, i) for i in range(count)] for n in numbers}


class Loop:
    """Works like the engine's loop, with `depth` steps in flight.

    Args:
      checks: check the invariants after each step.
      seconds: the time of a step.

    Attributes:
      sequences: all that were added.
      written: their tokens, by number.
      ended: the reasons of their ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device: FakeDevice | None = None,
        depth: int = 1,
        *,
        checks: bool = True,
        seconds: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.device = make_device() if device is None else device
        self.depth = depth
        self.in_flight: deque[StepPlan] = deque()
        self.sequences: list[Sequence] = []
        self.written: dict[int, list[int]] = {}
        self.ended: dict[int, tuple[str, int | None]] = {}
        self._checks = checks
        self._seconds = seconds

    @property
    def num_preemptions(self) -> int:
        return self.scheduler.counters().num_preemptions

    def add(self, sequence: Sequence) -> Sequence:
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def measure(self, plan: StepPlan) -> float:
        """Return the time of a step."""
        return self._seconds

    def fill(self) -> list[StepPlan]:
        """Plan steps, as many as the depth allows; return the new ones."""
        plans = []
        while len(self.in_flight) < self.depth:
            plan = self.scheduler.schedule()
            if plan is None:
                break
            plans.append(plan)
            self.in_flight.append(plan)
        return plans

    def drain_one(self) -> list[TokenDelta]:
        """Run the oldest step in flight, and return its outputs."""
        plan = self.in_flight.popleft()
        outputs = self.scheduler.update(
            plan, self.device.step(plan), self.measure(plan)
        )
        if self._checks:
            self.scheduler.check()
        for output in outputs:
            number = output.sequence_id
            self.written.setdefault(number, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ended[number] = output.finish_reason, output.stop_token_id
        return outputs

    def step(self) -> StepPlan | None:
        """Plan steps and run one; return it, or None if there is nothing to do."""
        self.fill()
        if not self.in_flight:
            return None
        plan = self.in_flight[0]
        self.drain_one()
        return plan

    def run(self, limit: int = 5000) -> dict[int, list[int]]:
        """Run until all sequences have ended, and return their tokens."""
        for _ in range(limit):
            if self.step() is None:
                self.scheduler.check()
                return self.written
        raise AssertionError("the sequences never end")
