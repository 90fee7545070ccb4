"""A device that sleeps for each step, like a thread that waits for a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trioserve.engine.generation.core import LocalCore
    from trioserve.types.output import StepResult
    from trioserve.types.plan import StepPlan

# The most sequences of the model, and of a device that sleeps.
NUM_SEQUENCES = 128
MOST_SEQUENCES = 512
MAX_MODEL_LEN = 2**15
BLOCK_SIZE = 16

_TOKEN = (65,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A real model, or a device that sleeps.

    Attributes:
      step_seconds: None for a real model.
      num_waits: number of sleeps in a step.
      max_tokens: limit of a stream, which it does not reach during a turn.
    """

    name: str
    step_seconds: float | None = None
    num_waits: int = 1
    max_tokens: int = 30_000

    @property
    def max_streams(self) -> int:
        return NUM_SEQUENCES if self.step_seconds is None else MOST_SEQUENCES


DEVICES = {
    device.name: device
    for device in (
        Device(name="model", max_tokens=1900),
        Device(name="2 ms", step_seconds=0.002),
        Device(name="5 ms", step_seconds=0.005),
        Device(name="2 ms / 20", step_seconds=0.002, num_waits=20),
    )
}


class FixedToken:
    """Gives every row the same token, at no cost."""

    def __init__(self) -> None:
        self.num_steps = 0

    def step(self, plan: StepPlan) -> StepResult:
        from trioserve.types.output import StepResult

        self.num_steps += 1
        sampled = tuple(_TOKEN for row in plan.rows if row.sample)
        return StepResult(step_id=plan.step_id, sampled=sampled)


class Sleeper(FixedToken):
    """Gives every row the same token, after a sleep."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        assert device.step_seconds is not None, "a model computes elsewhere"
        self._num_waits = device.num_waits
        self._seconds = device.step_seconds / device.num_waits

    def step(self, plan: StepPlan) -> StepResult:
        # A sleep that begins late ends late, like a kernel that is launched late.
        for _ in range(self._num_waits):
            time.sleep(self._seconds)
        return super().step(plan)


def sleep_sharply() -> None:
    """Make this thread, and the threads that it starts later, wake up on time.

    By default Linux adds 50 us to each sleep, which matters for 20 sleeps of 100 us.
    """
    pr_set_timerslack = 29
    ctypes.CDLL(None).prctl(pr_set_timerslack, 1)


def make_core(device: Device) -> LocalCore:
    """Make the core of an engine whose device sleeps."""
    from trioserve.engine.generation.core import LocalCore
    from trioserve.executor import LocalExecutor
    from trioserve.scheduler.generation.scheduler import Scheduler
    from trioserve.testing.fake_device import make_info

    scheduler = Scheduler(
        num_blocks=MOST_SEQUENCES * MAX_MODEL_LEN // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=MOST_SEQUENCES,
        max_num_batched_tokens=2048,
        max_model_len=MAX_MODEL_LEN,
    )
    executor: LocalExecutor[StepPlan, StepResult] = LocalExecutor(
        Sleeper(device).step, depth=2
    )
    return LocalCore(scheduler, executor, info=make_info(MAX_MODEL_LEN))
