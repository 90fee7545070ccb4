"""The test kit: fakes that behave, for our tests and those of programs that embed us.

FakeExecutor stands for a device whose steps take virtual seconds: under trio's
autojump clock a story of a hundred seconds takes a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from .steps import ModelInfo, SampledToken, StepPlan, StepResult, StepRow

__all__ = ["FakeDevice", "FakeExecutor", "make_info"]


def make_info(
    max_model_len: int = 256,
    *,
    vocab_size: int = 512,
    hidden_size: int = 8,
    takes_images: bool = False,
) -> ModelInfo:
    """Describe a model that does not exist."""
    return ModelInfo(
        name="fake",
        architecture="Fake",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=frozenset(),
        hidden_size=hidden_size,
        takes_images=takes_images,
        fingerprint="fp_fake",
    )


@dataclass(slots=True)
class _Slot:
    seed: int
    num_prompt: int
    num_tokens: int


def count_up(seed: int, index: int) -> int:
    """Output token `index` of a fake sequence: a pattern that shows gaps and mix-ups."""
    return (seed * 31 + index) % 251


class FakeDevice:
    """Answers plans without a model: output token i is `token(seed, i)`.

    It checks what a real runner relies on: a slot's rows follow each other without a
    gap, and their blocks cover what they compute.

    Args:
      token: gives the id of output token i of a sequence from its seed.
      block_size: tokens in one KV block; None does not check the blocks.
    """

    def __init__(
        self,
        token: Callable[[int, int], int] = count_up,
        *,
        block_size: int | None = None,
    ) -> None:
        self._token = token
        self._block_size = block_size
        self._slots: dict[int, _Slot] = {}
        self._num_blocks: dict[int, int] = {}
        self.plans: list[StepPlan] = []

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for start in plan.starts:
            num_prompt = len(start.prompt_token_ids)
            num_tokens = num_prompt + len(start.output_token_ids)
            self._slots[start.slot] = _Slot(start.seed, num_prompt, num_tokens)
            self._num_blocks[start.slot] = 0
        sampled = [self._compute(row) for row in plan.rows]
        return StepResult(
            step_id=plan.step_id,
            sampled=tuple(SampledToken(token_id=t) for t in sampled if t is not None),
        )

    def _compute(self, row: StepRow) -> int | None:
        slot = self._slots[row.slot]
        self._num_blocks[row.slot] += len(row.new_block_ids)
        end = row.start + row.num_tokens
        assert end <= slot.num_tokens, "only known tokens are computed"
        if self._block_size is not None:
            room = self._num_blocks[row.slot] * self._block_size
            assert end <= room, "a row's tokens have blocks"
        if not row.sample:
            return None
        assert end == slot.num_tokens, "a row that samples ends at the last token"
        token_id = self._token(slot.seed, slot.num_tokens - slot.num_prompt)
        slot.num_tokens += 1
        return token_id


class FakeExecutor:
    """An Executor whose steps take `step_seconds + token_seconds * num_tokens`.

    Args:
      fail_at_step: the step with this number raises RuntimeError.
    """

    def __init__(
        self,
        device: FakeDevice | None = None,
        *,
        step_seconds: float = 0.01,
        token_seconds: float = 0.0,
        depth: int = 1,
        fail_at_step: int | None = None,
    ) -> None:
        self.depth = depth
        self.device = device or FakeDevice()
        self._step_seconds = step_seconds
        self._token_seconds = token_seconds
        self._fail_at_step = fail_at_step
        self._free_at = 0.0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep_forever()

    def submit(self, plan: StepPlan) -> _FakeHandle:
        starts_at = max(self._free_at, trio.current_time())
        seconds = self._step_seconds + self._token_seconds * plan.num_tokens
        self._free_at = starts_at + seconds
        return _FakeHandle(self, plan, self._free_at)

    def compute(self, plan: StepPlan) -> StepResult:
        if plan.step_id == self._fail_at_step:
            raise RuntimeError("the device is broken")
        return self.device.step(plan)


class _FakeHandle:
    def __init__(self, executor: FakeExecutor, plan: StepPlan, ready_at: float) -> None:
        self._executor = executor
        self._plan = plan
        self._ready_at = ready_at

    async def wait(self) -> StepResult:
        await trio.sleep_until(self._ready_at)
        return self._executor.compute(self._plan)
