"""The memory of an executor is given back and taken again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest
import trio

from trioserve.errors import InvalidAdapter, NotEnoughMemory, StartupError
from trioserve.executor import LocalExecutor, RestingExecutor
from trioserve.types.adapter import AdapterFacts, AdapterSource
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.sleep import SleepLevel

# The contents of adapters, by their paths.
FILES = {"": b"1"}


@contextmanager
def _tell() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise NotEnoughMemory(str(error)) from error


class Model:
    """A runner that notes its calls."""

    def __init__(
        self, number: int, happened: list[str], check: Callable[[], None]
    ) -> None:
        self._number = number
        self._happened = happened
        self._check = check

    def note(self, text: str) -> None:
        self._happened.append(f"{self._number} {text}")

    def step(self, plan: StepPlan) -> StepResult:
        self.note(f"step {plan.step_id}")
        return StepResult(step_id=plan.step_id, sampled=())

    def release_cache(self) -> None:
        self.note("release")

    def restore_cache(self) -> None:
        self.note("restore")
        self._check()

    def read_adapter(self, source: AdapterSource) -> tuple[AdapterFacts, Any]:
        self.note(f"read {source.name}")
        content = FILES.get(source.path)
        if content is None:
            raise InvalidAdapter(source.name, "there is no such folder")
        facts = AdapterFacts(
            number=source.number, name="a", digest=content, rank=1, num_bytes=1
        )
        return facts, "weights"

    def add_adapter(self, number: int, weights: Any) -> None:
        self.note(f"add {number}")

    def remove_adapter(self, number: int) -> None:
        self.note(f"remove {number}")


class Bench:
    """An executor whose models are numbered.

    Attributes:
      failure: raised when memory is taken again.
    """

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.failure: Exception | None = None
        self._num_models = 0
        stack = AsyncExitStack()
        stack.callback(self.happened.append, "closed")
        self.executor = RestingExecutor[StepPlan, StepResult](
            self._load(),
            stack,
            self._open,
            trim=self._trim,
            telling_shortage=_tell,
        )

    async def run_step(self, number: int) -> None:
        is_done = trio.Event()
        plan = StepPlan(step_id=number, starts=(), rows=())
        handle = self.executor.submit(plan, is_done.set)
        await is_done.wait()
        assert handle.take().step_id == number

    def take(self) -> list[str]:
        happened, self.happened[:] = [*self.happened], []
        return happened

    def _load(self) -> LocalExecutor[StepPlan, StepResult]:
        self._num_models += 1
        model = Model(self._num_models, self.happened, self._check)
        return LocalExecutor(model.step, adapters=model, cache=model)

    async def _open(self, stack: AsyncExitStack) -> LocalExecutor[StepPlan, StepResult]:
        await trio.lowlevel.checkpoint()
        self._check()
        return self._load()

    def _trim(self) -> int:
        self.happened.append("trim")
        return 7

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


async def test_levels(nursery: trio.Nursery) -> None:
    bench = Bench()
    executor = bench.executor
    assert executor.levels == (1, 2)
    source = AdapterSource(number=3, name="a", path="")
    with trio.fail_after(60):
        await nursery.start(executor.run)
        await executor.load_adapter(source)
        await bench.run_step(1)
        assert bench.take() == ["1 read a", "1 add 3", "1 step 1"]
        await executor.give_back(1)
        with pytest.raises(InvalidAdapter, match="asleep"):
            await executor.load_adapter(source)
        await executor.take_again()
        await bench.run_step(2)
        assert bench.take() == ["1 release", "trim", "1 restore", "1 step 2"]
        await executor.give_back(1)
        assert await executor.give_back(2) == 7
        assert bench.take() == ["1 release", "trim", "closed", "trim"]
        # The adapter is loaded again, and has its number.
        await executor.take_again()
        await bench.run_step(3)
        assert bench.take() == ["2 read a", "2 add 3", "2 step 3"]
        executor.drop_adapter(3)
        await bench.run_step(4)
        await executor.give_back(2)
        await executor.take_again()
        await bench.run_step(5)
        assert bench.take() == ["2 remove 3", "2 step 4", "trim", "3 step 5"]


async def test_adapters_that_are_gone_or_changed_are_told(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    with trio.fail_after(60):
        await nursery.start(bench.executor.run)
        for number, path in enumerate(("same", "gone", "changed"), 1):
            monkeypatch.setitem(FILES, path, b"1")
            source = AdapterSource(number=number, name=path, path=path)
            await bench.executor.load_adapter(source)
        monkeypatch.delitem(FILES, "gone")
        monkeypatch.setitem(FILES, "changed", b"2")
        await bench.executor.give_back(2)
        bench.take()
        assert await bench.executor.take_again() == (2, 3)
        await bench.run_step(1)
        happened = ["2 read same", "2 add 1", "2 read gone"]
        happened += ["2 read changed", "2 add 3", "2 remove 3", "2 step 1"]
        # The reads go on beside the changes.
        assert sorted(bench.take()) == sorted(happened)
        await bench.executor.give_back(2)
        assert await bench.executor.take_again() == ()


async def test_adapters_that_are_dropped_during_the_wake_up_are_not_loaded(
    nursery: trio.Nursery,
) -> None:
    bench = Bench()
    executor = bench.executor
    with trio.fail_after(60):
        await nursery.start(executor.run)
        for number in (1, 2, 3):
            source = AdapterSource(number=number, name=f"{number}", path="")
            await executor.load_adapter(source)
        await executor.give_back(2)
        bench.take()
        async with trio.open_nursery() as waking:
            waking.start_soon(executor.take_again)
            while not bench.happened:
                await trio.lowlevel.checkpoint()
            # The first is being read; the third hardly is yet.
            executor.drop_adapter(1)
            executor.drop_adapter(3)
        executor.drop_adapter(2)
        await bench.run_step(1)
    on_device = set()
    for _, verb, number in map(str.split, bench.take()):
        if verb == "add":
            on_device.add(number)
        elif verb == "remove":
            on_device.remove(number)
    assert not on_device


async def test_an_executor_without_a_cache_has_no_level_1() -> None:
    async def open(stack: AsyncExitStack) -> LocalExecutor[int, int]:
        raise AssertionError("it does not wake")

    executor = RestingExecutor[int, int](
        *(LocalExecutor(lambda plan: plan), AsyncExitStack(), open),
        trim=lambda: 0,
        telling_shortage=_tell,
    )
    assert executor.levels == (2,)


@pytest.mark.parametrize("level", [1, 2])
async def test_without_memory_all_is_given_back_and_it_can_wake_later(
    nursery: trio.Nursery, level: SleepLevel
) -> None:
    bench = Bench()
    executor = bench.executor
    with trio.fail_after(60):
        await nursery.start(executor.run)
        await executor.load_adapter(AdapterSource(number=3, name="a", path=""))
        await executor.give_back(level)
        for _ in range(2):
            bench.failure = MemoryError("the memory is short")
            bench.take()
            with pytest.raises(StartupError, match="the memory is short"):
                await executor.take_again()
            assert bench.take()[-1] == "trim"
        bench.failure = None
        await executor.take_again()
        await bench.run_step(1)
        assert bench.take() == ["2 read a", "2 add 3", "2 step 1"]
