"""Errors that leave the block of an engine; e2e tests the real functions."""

from __future__ import annotations

from contextlib import nullcontext
import gc
import weakref

import pytest
import trio
import trio.testing

from trioserve.errors import EngineDied
from trioserve.startup.engine_task import open_engine_task


class DeviceBroken(Exception):
    """An error of the device."""


class OwnError(Exception):
    """An error of a user's program."""


class Engine:
    """Runs until `fail` is called, in its own nurseries like the real engine."""

    def __init__(self) -> None:
        self._has_failed = trio.Event()

    def fail(self) -> None:
        self._has_failed.set()

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            task_status.started()
            await self._has_failed.wait()
            raise DeviceBroken()


async def test_an_error_of_the_block_passes_unchanged() -> None:
    cause, context = KeyError("cause"), LookupError("context")
    error = OwnError()
    with pytest.raises(OwnError) as caught:
        async with open_engine_task(Engine()):
            try:
                raise context
            except LookupError:
                raise error from cause
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__context__ is context
    assert "test_an_error_of_the_block" in str(caught.traceback[-1])


async def test_a_group_of_the_block_passes_unchanged() -> None:
    group = ExceptionGroup("two", [OwnError(), OwnError()])
    try:
        async with open_engine_task(Engine()):
            raise group
    except ExceptionGroup as caught:
        assert caught is group
    else:
        raise AssertionError("it was swallowed")


async def test_a_group_of_one_error_stays_a_group() -> None:
    with pytest.RaisesGroup(OwnError):
        async with open_engine_task(Engine()):
            async with trio.open_nursery():
                raise OwnError()


async def test_an_error_whose_truth_value_is_false_is_raised() -> None:
    class Problems(Exception):
        """An error that is an empty list of problems."""

        def __len__(self) -> int:
            return 0

    with pytest.raises(Problems):
        async with open_engine_task(Engine()):
            raise Problems()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(5)])
async def test_an_error_that_ends_programs_passes_unchanged(
    error: BaseException,
) -> None:
    with pytest.raises(type(error)) as caught:
        async with open_engine_task(Engine()):
            raise error
    assert caught.value is error


async def test_a_cancellation_from_outside_raises_no_error() -> None:
    with trio.CancelScope() as scope:
        async with open_engine_task(Engine()):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_error_raised_on_cancellation_is_raised() -> None:
    with trio.CancelScope() as scope, pytest.raises(OwnError):
        async with open_engine_task(Engine()):
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                raise OwnError()


async def test_errors_beside_cancelled_tasks_of_the_block_stay_a_group() -> None:
    with trio.CancelScope() as scope, pytest.RaisesGroup(OwnError):
        async with open_engine_task(Engine()):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(fail_on_cancellation)
                await trio.lowlevel.checkpoint()
                scope.cancel()


async def fail_on_cancellation() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise OwnError()


async def test_a_failed_engine_raises_engine_died_with_the_cause() -> None:
    engine = Engine()
    with pytest.raises(EngineDied) as caught:
        async with open_engine_task(engine):
            engine.fail()
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, DeviceBroken)


async def test_engine_died_in_the_block_is_raised_once() -> None:
    """A stream raises it in the block."""
    engine = Engine()
    with pytest.raises(EngineDied) as caught:
        async with open_engine_task(engine):
            await fail_and_see(engine)
            raise EngineDied()
    assert isinstance(caught.value.__cause__, DeviceBroken)


async def test_engine_died_in_tasks_of_the_block_is_raised_once() -> None:
    engine = Engine()
    with pytest.raises(EngineDied):
        async with open_engine_task(engine):
            await fail_and_see(engine)
            raise ExceptionGroup("two streams", [EngineDied(), EngineDied()])


async def test_an_error_of_the_block_joins_that_of_the_engine() -> None:
    engine = Engine()
    with pytest.RaisesGroup(OwnError, EngineDied):
        async with open_engine_task(engine):
            await fail_and_see(engine)
            raise OwnError()


async def test_a_failed_engine_wins_over_a_cancellation() -> None:
    engine = Engine()
    with trio.CancelScope() as scope, pytest.raises(EngineDied):
        async with open_engine_task(engine):
            await fail_and_see(engine)
            scope.cancel()
            await trio.sleep_forever()


async def fail_and_see(engine: Engine) -> None:
    """Let the engine fail, and ignore the cancellation that follows."""
    engine.fail()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()


async def test_an_engine_that_does_not_start_raises_engine_died() -> None:
    class Broken:
        async def run(  # noqa: ASYNC128 (it fails before)
            self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            await trio.lowlevel.checkpoint()
            raise DeviceBroken()

    with pytest.raises(EngineDied) as caught:
        async with open_engine_task(Broken()):
            raise AssertionError("it never ran")
    assert isinstance(caught.value.__cause__, DeviceBroken)


@pytest.mark.parametrize("is_loose", [False, True])
def test_the_exception_groups_of_the_program_do_not_matter(is_loose: bool) -> None:
    async def main() -> None:
        with pytest.RaisesGroup(OwnError):
            async with open_engine_task(Engine()):
                raise ExceptionGroup("one", [OwnError()])

    with pytest.warns(trio.TrioDeprecationWarning) if is_loose else nullcontext():
        trio.run(main, strict_exception_groups=not is_loose)


async def test_an_error_of_the_block_is_freed_without_the_collector() -> None:
    """Its traceback holds frames, which may hold gigabytes."""
    gc.disable()
    try:
        assert (await leave_with_error())() is None
    finally:
        gc.enable()


async def leave_with_error() -> weakref.ref[OwnError]:
    try:
        async with open_engine_task(Engine()):
            raise OwnError()
    except OwnError as error:
        return weakref.ref(error)
