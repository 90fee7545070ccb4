"""Fake devices and a fake executor, for our tests and for programs that embed us.

FakeExecutor simulates a device whose steps take virtual seconds: under trio's autojump
clock, a test of a hundred virtual seconds takes a millisecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
import math
from typing import Generic, Protocol, TypeVar

import outcome
import trio

from ..executor.protocol import Handle
from ..types.adapter import NO_ADAPTER, AdapterFacts, AdapterSource
from ..types.ids import BlockId
from ..types.model_info import ModelInfo
from ..types.output import SequenceError, StepResult
from ..types.plan import SlotStart, StepPlan, StepRow
from ..types.pooling import (
    PoolingInfo,
    PoolingPlan,
    PoolingResult,
    PoolingRow,
    PoolingTask,
    QueryKey,
)
from ..types.sleep import SleepLevel
from ..types.tensors import TensorBytes

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
    """Return the facts about an imaginary model."""
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
    token: Callable[[int, int], int]
    num_prompt: int
    token_ids: list[int]
    block_ids: list[BlockId]
    window_ids: dict[int, BlockId]
    num_window_blocks: int
    is_skipped: bool = False
    state: tuple[int, ...] = ()


def count_up(seed: int, index: int) -> int:
    """Output token `index` of a fake sequence: a pattern that shows gaps and mix-ups."""
    return (seed * 31 + index) % 251


class FakeDevice:
    """Runs plans without a model: output token i is `token(seed, i)`.

    It checks conditions that a real runner relies on: the tokens of a row are known,
    its blocks have room for them, and a row that samples ends at the last token.

    Args:
      token: returns the id of an output token, from its sequence's seed and its index.
      block_size: tokens in one KV block; None does not check the blocks.
      reads_blocks: also check that the blocks of a row still hold the tokens of its
        sequence. The cost of a step then grows with the length of its sequences.
      window: the most keys that a query sees in layers with blocks of their own; their
        blocks are checked, too. None without such layers.
      keeps_states: also check that the state of a slot has read the tokens before each row.
      is_late: tells whether the grammar of a slot is late. Its rows are skipped then, and
        so are rows that were planned behind a skipped one.
      seed_of: the seed of a sequence, for `token` and `error`.
      adapter_tokens: replace `token` for the sequences of adapters, by their numbers.
      error: why a sequence cannot have the output token with an index, if so; called with
        its seed and the index.
    """

    def __init__(
        self,
        token: Callable[[int, int], int] = count_up,
        *,
        block_size: int | None = None,
        reads_blocks: bool = False,
        window: int | None = None,
        keeps_states: bool = False,
        is_late: Callable[[int], bool] = lambda slot: False,
        seed_of: Callable[[SlotStart], int] = lambda start: start.seed,
        adapter_tokens: Mapping[int, Callable[[int, int], int]] = {},
        error: Callable[[int, int], SequenceError | None] = lambda seed, index: None,
    ) -> None:
        self._token = token
        self._seed_of = seed_of
        self._adapter_tokens = adapter_tokens
        self._error = error
        self._block_size = block_size
        self._reads_blocks = reads_blocks
        self._window = window
        self._keeps_states = keeps_states
        self._copies: dict[int, tuple[int, ...]] = {}
        self._is_late = is_late
        self._slots: dict[int, _Slot] = {}
        # (block, offset) -> (position, token id)
        self._cache: dict[tuple[BlockId, int], tuple[int, int]] = {}
        self._window_cache: dict[tuple[BlockId, int], tuple[int, int]] = {}
        self.plans: list[StepPlan] = []

    def lose_memory(self) -> None:
        """Lose all blocks, states and copies; no slot is in use."""
        self._cache.clear()
        self._window_cache.clear()
        self._copies.clear()

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for start in plan.starts:
            self._slots[start.slot] = _Slot(
                seed=self._seed_of(start),
                token=self._adapter_tokens.get(start.adapter, self._token),
                num_prompt=len(start.prompt_token_ids),
                token_ids=[*start.prompt_token_ids, *start.output_token_ids],
                block_ids=[],
                window_ids={},
                num_window_blocks=start.first_window_block,
            )
            if start.restores is not None:
                self._slots[start.slot].state = self._copies[start.restores]
        for row in plan.rows:
            self._check(row)
        if self._reads_blocks:
            self._compute(plan)
        if self._keeps_states:
            for row in plan.rows:
                self._move_state(row)
        errors = self._find_errors(plan)
        sampled = tuple(
            () if row.slot in errors else self._sample(row)
            for row in plan.rows
            if row.sample
        )
        late = tuple(slot for slot in self._slots if self._is_late(slot))
        return StepResult(
            step_id=plan.step_id, sampled=sampled, errors=errors, late=late
        )

    def _find_errors(self, plan: StepPlan) -> dict[int, SequenceError]:
        errors = {}
        for row in plan.rows:
            slot = self._slots[row.slot]
            error = self._error(slot.seed, len(slot.token_ids) - slot.num_prompt)
            if row.sample and error is not None:
                # A row behind it has no token, either.
                slot.is_skipped = True
                errors[row.slot] = error
        return errors

    def _check(self, row: StepRow) -> None:
        slot = self._slots[row.slot]
        slot.block_ids += row.new_block_ids
        for block_id in row.new_window_ids:
            slot.window_ids[slot.num_window_blocks] = block_id
            slot.num_window_blocks += 1
        is_known = row.end <= len(slot.token_ids)
        assert is_known or slot.is_skipped, "a row's tokens are there"
        if self._block_size is not None:
            room = len(slot.block_ids) * self._block_size
            assert row.end <= room, "a row's tokens have blocks"

    def _compute(self, plan: StepPlan) -> None:
        """Write the tokens of all rows, then read all blocks, as each layer does."""
        for row in plan.rows:
            slot = self._slots[row.slot]
            for position in range(row.start, row.end):
                cell = self._find_cell(slot, position)
                # A row behind a skipped one has the same token again.
                index = min(position, len(slot.token_ids) - 1)
                self._cache[cell] = position, slot.token_ids[index]
                if self._window is not None:
                    cell = self._find_window_cell(slot, position)
                    self._window_cache[cell] = position, slot.token_ids[index]
        for row in plan.rows:
            slot = self._slots[row.slot]
            for position in range(min(row.end, len(slot.token_ids))):
                read = self._cache[self._find_cell(slot, position)]
                written = position, slot.token_ids[position]
                assert read == written, "a block was overwritten"
                if self._window is None or position <= row.start - self._window:
                    continue
                read = self._window_cache[self._find_window_cell(slot, position)]
                assert read == written, "a window block was overwritten"

    def _move_state(self, row: StepRow) -> None:
        """Let the state of a slot, the tokens that it has read, read a row."""
        slot = self._slots[row.slot]
        num_known = len(slot.token_ids)
        is_skipped = row.end > num_known or self._is_late(row.slot)
        end = row.end - (row.sample and is_skipped)
        if row.start == 0:
            slot.state = ()
        if row.start < end:
            read = tuple(slot.token_ids[: row.start])
            assert slot.state == read, "a state has read all tokens before a row"
            slot.state += tuple(slot.token_ids[row.start : end])
        if row.saves is not None:
            self._copies[row.saves] = slot.state

    def _find_cell(self, slot: _Slot, position: int) -> tuple[BlockId, int]:
        assert self._block_size is not None, "blocks have a size"
        index, offset = divmod(position, self._block_size)
        return slot.block_ids[index], offset

    def _find_window_cell(self, slot: _Slot, position: int) -> tuple[BlockId, int]:
        assert self._block_size is not None, "blocks have a size"
        index, offset = divmod(position, self._block_size)
        return slot.window_ids[index], offset

    def _sample(self, row: StepRow) -> tuple[int, ...]:
        slot = self._slots[row.slot]
        num_tokens = len(slot.token_ids)
        slot.is_skipped = row.end > num_tokens or self._is_late(row.slot)
        if slot.is_skipped:
            return ()
        assert row.end == num_tokens, "a row that samples ends at the last token"
        token_id = slot.token(slot.seed, num_tokens - slot.num_prompt)
        slot.token_ids.append(token_id)
        return (token_id,)


def make_pooling_info(
    task: PoolingTask = "embed",
    *,
    num_outputs: int = 8,
    labels: tuple[str, ...] = (),
    matryoshka: tuple[int, ...] | None = None,
) -> PoolingInfo:
    """Return the pooling facts about an imaginary model."""
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
    """Runs pooling plans without a model: the vector of a text is its fake_vector.

    The vector of a token is the fake_vector of the token alone. A query must be kept
    before a plan uses it, as on a real device.

    Attributes:
      plans: all plans so far.
      kept: the vectors of the queries that are kept at present.
    """

    def __init__(self, num_outputs: int = 8) -> None:
        self._num_outputs = num_outputs
        self.plans: list[PoolingPlan] = []
        self.kept: dict[QueryKey, list[list[float]]] = {}

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
            # For texts with one vector each, MaxSim is the cosine.
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


def make_adapter(source: AdapterSource) -> AdapterFacts:
    """Return the facts about an imaginary adapter, whose content is its path."""
    return AdapterFacts(
        number=source.number,
        name=source.name,
        digest=blake2b(source.path.encode(), digest_size=16).digest(),
        rank=16,
        num_bytes=2**20,
    )


class FakeMemory:
    """The memory of a fake model (engine.sleep.Memory), which takes virtual time.

    Args:
      device: loses its blocks with the memory.
      fails: the error of each attempt to take it again.

    Attributes:
      moves: the levels in the order of the calls; 0 if all was taken again.
      lost_adapters: the numbers of adapters that are gone then.
      fails: as above.
    """

    def __init__(
        self,
        device: FakeDevice | None = None,
        *,
        levels: tuple[SleepLevel, ...] = (1, 2),
        give_seconds: float = 1.0,
        take_seconds: float = 5.0,
        fails: Exception | None = None,
    ) -> None:
        self.levels = levels
        self.moves: list[SleepLevel] = []
        self.lost_adapters: list[int] = []
        self._device = device
        self._give_seconds = give_seconds
        self._take_seconds = take_seconds
        self.fails = fails

    async def give_back(self, level: SleepLevel) -> int:
        await trio.sleep(self._give_seconds)
        if self._device is not None:
            self._device.lose_memory()
        self.moves.append(level)
        return 3 - level

    async def take_again(self) -> Sequence[int]:
        await trio.sleep(self._take_seconds)
        if self.fails is not None:
            raise self.fails
        self.moves.append(0)
        return self.lost_adapters


class FakeExecutor(Generic[PlanT, ResultT]):
    """An Executor whose steps take `step_seconds + token_seconds * num_tokens`.

    Args:
      seconds_of: returns the duration of a plan; it replaces this formula.
      step: runs a plan, such as FakeDevice.step or FakePoolingDevice.step.
      fail_at_step: the step with this number raises RuntimeError.
      read_adapter: returns an adapter's facts after `adapter_seconds`, or refuses it.

    Attributes:
      idle_seconds: the time that the device has waited for steps since its first one.
      adapters: the loaded ones, by number.
    """

    def __init__(
        self,
        step: Callable[[PlanT], ResultT],
        *,
        step_seconds: float = 0.01,
        token_seconds: float = 0.0,
        seconds_of: Callable[[PlanT], float] | None = None,
        depth: int = 1,
        max_depth: int | None = None,
        fail_at_step: int | None = None,
        adapter_seconds: float = 0.5,
        read_adapter: Callable[[AdapterSource], AdapterFacts] = make_adapter,
    ) -> None:
        self.depth = depth
        self.max_depth = max_depth or depth
        self.adapters: dict[int, AdapterFacts] = {}
        # Those that the submitted steps may use.
        self._on_device: set[int] = set()
        self._adapter_seconds = adapter_seconds
        self._read_adapter = read_adapter
        self.idle_seconds = 0.0
        self._step = step
        self._seconds_of = seconds_of or (
            lambda plan: step_seconds + token_seconds * plan.num_tokens
        )
        self._fail_at_step = fail_at_step
        self._free_at: float | None = None
        self._send, self._receive = trio.open_memory_channel[
            tuple[PlanT, Handle[ResultT], float] | int
        ](math.inf)

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        async for item in self._receive:
            if isinstance(item, int):
                self._on_device.remove(item)
                continue
            plan, handle, ready_at = item
            await trio.sleep_until(ready_at)
            handle.set(outcome.capture(self._compute, plan))

    def submit(self, plan: PlanT, notify: Callable[[], None]) -> Handle[ResultT]:
        now = trio.current_time()
        if self._free_at is not None:
            self.idle_seconds += max(0.0, now - self._free_at)
        self._free_at = max(self._free_at or now, now) + self._seconds_of(plan)
        handle = Handle[ResultT](notify)
        self._send.send_nowait((plan, handle, self._free_at))
        return handle

    async def load_adapter(self, source: AdapterSource) -> AdapterFacts:
        await trio.sleep(self._adapter_seconds)
        facts = self.adapters[source.number] = self._read_adapter(source)
        self._on_device.add(source.number)
        return facts

    def drop_adapter(self, number: int) -> None:
        del self.adapters[number]
        self._send.send_nowait(number)

    def _compute(self, plan: PlanT) -> ResultT:
        if plan.step_id == self._fail_at_step:
            raise RuntimeError("the device is broken")
        for start in getattr(plan, "starts", ()):
            used = {start.adapter} - {NO_ADAPTER}
            assert used <= self._on_device, "an adapter was dropped too early"
        return self._step(plan)
