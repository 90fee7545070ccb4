"""The test kit: fakes that behave, for our tests and those of programs that embed us.

FakeExecutor stands for a device whose steps take virtual seconds: under trio's
autojump clock a story of a hundred seconds takes a millisecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
from typing import Generic, Protocol, TypeVar

import trio

from .pooling import (
    KeptKey,
    PoolingInfo,
    PoolingPlan,
    PoolingResult,
    PoolingRow,
    PoolingTask,
)
from .steps import (
    ModelInfo,
    SampledToken,
    StepPlan,
    StepResult,
    StepRow,
    TensorBytes,
)

__all__ = [
    "FakeDevice",
    "FakeExecutor",
    "FakePoolingDevice",
    "fake_vector",
    "make_info",
    "make_pooling_info",
]


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


def make_pooling_info(
    task: PoolingTask = "embed",
    *,
    num_outputs: int = 8,
    labels: tuple[str, ...] = (),
    matryoshka: tuple[int, ...] | None = None,
) -> PoolingInfo:
    """Describe how a model pools that does not exist."""
    tasks: tuple[PoolingTask, ...] = (task,)
    if task == "embed":
        tasks = ("embed", "token_embed")
    return PoolingInfo(
        task=task,
        tasks=tasks,
        num_outputs=num_outputs,
        labels=labels,
        matryoshka=matryoshka,
    )


def fake_vector(token_ids: Sequence[int], size: int) -> list[float]:
    """Make a vector of length 1 that depends on every token and on their order."""
    state = 1
    for token_id in token_ids:
        state = (state * 31 + token_id + 7) % 1_000_003
    numbers = [math.sin(state + i) for i in range(size)]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


class FakePoolingDevice:
    """Answers pooling plans without a model: a text's vector is fake_vector of it.

    A token's vector is fake_vector of the token alone. What is kept must have been kept
    before it is asked for, as on a real device.

    Attributes:
      plans: all that came.
      kept: what it keeps.
    """

    def __init__(self, num_outputs: int = 8) -> None:
        self._num_outputs = num_outputs
        self.plans: list[PoolingPlan] = []
        self.kept: dict[KeptKey, list[list[float]]] = {}

    def step(self, plan: PoolingPlan) -> PoolingResult:
        self.plans.append(plan)
        for key in plan.releases:
            self.kept.pop(key, None)
        for row in plan.rows:
            if row.keep_as is not None:
                self.kept[row.keep_as] = self._compute(row)
        return PoolingResult(
            step_id=plan.step_id,
            tensors=tuple(self._answer(row) for row in plan.rows),
            num_kept=len(self.kept),
        )

    def _compute(self, row: PoolingRow) -> list[list[float]]:
        size = row.params.dimensions or self._num_outputs
        ids = row.input.token_ids
        if not row.params.task.startswith("token_"):
            return [fake_vector(ids, size)]
        left_out = set(row.input.left_out)
        return [
            fake_vector([token_id], size)
            for position, token_id in enumerate(ids)
            if position not in left_out
        ]

    def _answer(self, row: PoolingRow) -> TensorBytes:
        if row.keep_as is not None:
            return _to_tensor([], (0,))
        vectors = self._compute(row)
        if row.compare_with is not None:
            query = self.kept[row.compare_with]
            # Of two vectors it is their cosine.
            return _to_tensor([_max_sim(query, vectors)], ())
        numbers = [number for vector in vectors for number in vector]
        if row.params.task.startswith("token_"):
            return _to_tensor(numbers, (len(vectors), len(vectors[0])))
        return _to_tensor(numbers, (len(numbers),))


def _max_sim(query: list[list[float]], document: list[list[float]]) -> float:
    return sum(
        max(sum(x * y for x, y in zip(ours, theirs)) for theirs in document)
        for ours in query
    )


def _to_tensor(numbers: list[float], shape: tuple[int, ...]) -> TensorBytes:
    return TensorBytes(data=array("f", numbers).tobytes(), dtype="float32", shape=shape)


class _Plan(Protocol):
    @property
    def step_id(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...


PlanT = TypeVar("PlanT", bound=_Plan)
ResultT = TypeVar("ResultT")


class FakeExecutor(Generic[PlanT, ResultT]):
    """An Executor whose steps take `step_seconds + token_seconds * num_tokens`.

    Args:
      step: such as FakeDevice's or FakePoolingDevice's.
      fail_at_step: the step with this number raises RuntimeError.
    """

    def __init__(
        self,
        step: Callable[[PlanT], ResultT],
        *,
        step_seconds: float = 0.01,
        token_seconds: float = 0.0,
        depth: int = 1,
        fail_at_step: int | None = None,
    ) -> None:
        self.depth = depth
        self._step = step
        self._step_seconds = step_seconds
        self._token_seconds = token_seconds
        self._fail_at_step = fail_at_step
        self._free_at = 0.0

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep_forever()

    def submit(self, plan: PlanT) -> _FakeHandle[PlanT, ResultT]:
        starts_at = max(self._free_at, trio.current_time())
        seconds = self._step_seconds + self._token_seconds * plan.num_tokens
        self._free_at = starts_at + seconds
        return _FakeHandle(self, plan, self._free_at)

    def compute(self, plan: PlanT) -> ResultT:
        if plan.step_id == self._fail_at_step:
            raise RuntimeError("the device is broken")
        return self._step(plan)


class _FakeHandle(Generic[PlanT, ResultT]):
    def __init__(
        self, executor: FakeExecutor[PlanT, ResultT], plan: PlanT, ready_at: float
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._ready_at = ready_at

    async def wait(self) -> ResultT:
        await trio.sleep_until(self._ready_at)
        return self._executor.compute(self._plan)
