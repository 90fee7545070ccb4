"""The router of several models, over fake engines and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioserve.errors import (
    AdapterRefused,
    EngineDied,
    ModelFailed,
    ModelNotFound,
    WeightsNotFound,
)
from trioserve.frontend.models.router import (
    RETRY_SECONDS,
    ModelEntry,
    ModelRouter,
    open_router,
)
from trioserve.testing.fake_device import make_info
from trioserve.types.sleep import SleepState

LOAD_SECONDS = 10.0
RESIDENCE = 60.0


class FakeEngine:
    """The part of an engine that the router sees."""

    def __init__(self, name: str, num_bytes: int) -> None:
        self.info = replace(make_info(64), name=name, memory_bytes=num_bytes)
        # The engine below it.
        self.engine = self
        self.on_sleep: Callable[[], None] | None = None
        self.sleep_state = SleepState()
        self.failure: Exception | None = None
        self.has_failed = trio.Event()

    def find(self, name: str) -> FakeEngine | None:
        return self if name == self.info.name else None

    def list_names(self) -> tuple[str, ...]:
        return self.info.name, "loaded"

    def check_alive(self) -> None:
        if self.failure is not None:
            raise EngineDied()

    def show(self, **fields: Any) -> None:
        """Show another state of the sleep."""
        self.sleep_state = SleepState(**fields)
        assert self.on_sleep is not None
        self.on_sleep()

    async def wake(self) -> None:
        self.show(phase="waking", level=2)
        await trio.sleep(1)
        self.show()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.has_failed.set()


class Models:
    """Models of fake engines.

    Attributes:
      events: loads and ends so far, such as "+a" and "-a"; "!a" is a load that was cancelled.
      error: raised at the end of the next load.
    """

    def __init__(self, budget: int | None = None, **sizes: int) -> None:
        self.events: list[str] = []
        self.open: dict[str, FakeEngine] = {}
        self.error: Exception | None = None
        entries = [
            ModelEntry(
                name=name, num_bytes=size, open_engine=lambda n=name: self._open(n)
            )
            for name, size in sizes.items()
        ]
        self.sizes = sizes
        self.router = ModelRouter(entries, budget=budget, min_residence=RESIDENCE)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Any]:
        try:
            await trio.sleep(LOAD_SECONDS)
        except trio.Cancelled:
            self.events.append(f"!{name}")
            raise
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        engine = self.open[name] = FakeEngine(name, self.sizes[name])
        self.events.append(f"+{name}")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, engine)
                yield engine
                nursery.cancel_scope.cancel()
        except* OSError as errors:
            raise EngineDied() from errors.exceptions[0]
        finally:
            self.events.append(f"-{name}")
            del self.open[name]

    async def _watch(self, engine: FakeEngine) -> None:
        await engine.has_failed.wait()
        assert engine.failure is not None
        # As long as requests may take to send the error to their clients.
        await trio.sleep(1)
        raise engine.failure

    def states(self) -> dict[str, str]:
        return {each.entry.name: each.view.state for each in self.router.describe()}

    async def use(self, name: str | None, seconds: float) -> str:
        async with self.router.hold(name) as engine:
            assert engine.info.name in self.open, "it stays as long as it is used"
            await trio.sleep(seconds)
            assert engine.info.name in self.open
            return engine.info.name


async def test_all_that_wait_share_one_load(autojump_clock: object) -> None:
    models = Models(a=1, b=1)
    async with open_router(models.router), trio.open_nursery() as nursery:
        for name in ("a", "a:latest", None):
            nursery.start_soon(models.use, name, 1)
        await wait_all_tasks_blocked()
        assert models.states() == {"a": "loading", "b": "unloaded"}
    assert trio.current_time() == LOAD_SECONDS + 1
    assert models.events == ["+a", "-a"]


async def test_a_name_that_is_not_served_is_told_with_the_names(
    autojump_clock: object,
) -> None:
    models = Models(a=1, b=1)
    async with open_router(models.router) as router:
        for name in ("c", "../a", "a/", "\x00"):
            with pytest.raises(ModelNotFound, match="`a` and `b`"):
                router.find(name)
        # Clients may have loaded an adapter.
        async with router.hold("a"):
            with pytest.raises(ModelNotFound, match="`a`, `loaded` and `b`"):
                router.find("c")


def test_a_name_wins_over_the_source_of_another_model() -> None:
    router = ModelRouter(
        [
            ModelEntry(name=name, source=source, open_engine=lambda: Models()._open(""))
            for name, source in [("org/a", "org/b"), ("x", "org/a"), ("y", "org/b")]
        ]
    )
    found = {each: router.find(each) for each in ("org/a", "org/b")}
    assert found == {"org/a": "org/a", "org/b": "org/a"}


async def test_a_load_is_cancelled_when_nobody_waits_any_more(
    autojump_clock: object,
) -> None:
    models = Models(a=1)

    async def give_up(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await models.use("a", 1)

    async with open_router(models.router):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up, 2)
            nursery.start_soon(give_up, 3)
        await wait_all_tasks_blocked()
        assert models.events == ["!a"]
        assert models.states() == {"a": "unloaded"}
        assert trio.current_time() == 3


async def test_a_load_that_the_operator_wants_goes_on_alone(
    autojump_clock: object,
) -> None:
    models = Models(a=1)
    async with open_router(models.router) as router:
        router.load("a")
        with trio.move_on_after(1):
            await models.use("a", 1)
        await trio.sleep(LOAD_SECONDS)
        assert models.states() == {"a": "loaded"}
        async with router.hold("a"):
            router.unload("a")
            await trio.sleep(100)
            assert models.states() == {"a": "draining"}
        await wait_all_tasks_blocked()
        assert models.states() == {"a": "unloaded"}


async def test_a_failed_load_tells_all_why_and_is_tried_again_later(
    autojump_clock: object,
) -> None:
    models = Models(a=1)
    models.error = WeightsNotFound("a", "no such folder")
    async with open_router(models.router):
        seen = []

        async def ask() -> None:
            with pytest.raises(ModelFailed, match="no such folder") as failed:
                await models.use("a", 1)
            seen.append(failed.value.retry_after_seconds)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert trio.current_time() == LOAD_SECONDS
        await ask()
        assert trio.current_time() == LOAD_SECONDS
        assert seen == [RETRY_SECONDS] * 3
        [status] = models.router.describe()
        assert "no such folder" in status.view.reason
        assert status.counts.num_failures == 1
        await trio.sleep(RETRY_SECONDS)
        assert await models.use("a", 1) == "a"


async def test_an_engine_that_fails_ends_alone(autojump_clock: object) -> None:
    models = Models(a=1, b=1)
    async with open_router(models.router), trio.open_nursery() as nursery:
        nursery.start_soon(models.use, "b", 100)
        async with models.router.hold("a"):
            models.open["a"].fail(OSError("killed"))
            # Requests that come while it is on its way out.
            with pytest.raises(ModelFailed, match="its engine failed"):
                await models.use("a", 1)
            await trio.sleep(2)
            assert models.states() == {"a": "failed", "b": "loaded"}
            with pytest.raises(ModelFailed, match="killed"):
                await models.use("a", 1)
            await trio.sleep(RETRY_SECONDS)
            # The request that has lost its engine does not count for the new one.
            await models.use("a", 1)
            models.router.unload("a")
            await wait_all_tasks_blocked()
            assert models.states() == {"a": "unloaded", "b": "loaded"}


async def test_requests_that_wait_too_short_get_their_model_at_a_later_try(
    autojump_clock: object,
) -> None:
    models = Models(budget=10, a=6, b=6)
    async with open_router(models.router) as router, trio.open_nursery() as nursery:
        nursery.start_soon(models.use, "a", 2 * RESIDENCE)
        await trio.sleep(LOAD_SECONDS + 1)
        with trio.move_on_after(1) as short:
            await models.use("b", 1)
        assert short.cancelled_caught
        router.keep_loading("b")
        # a is used, and takes no new requests before b had its turn.
        await trio.sleep(RESIDENCE + 1)
        assert models.states() == {"a": "draining", "b": "unloaded"}
        await trio.sleep(2 * RESIDENCE)
        assert models.states() == {"a": "unloaded", "b": "loaded"}


async def test_the_name_of_an_adapter_is_claimed_while_it_is_loaded(
    autojump_clock: object,
) -> None:
    models = Models(a=1, b=1)
    router = models.router
    async with open_router(router), router.hold("a") as one, router.hold("b") as other:
        with router.claim_name(one, "x"), router.claim_name(other, "y"):
            for engine, name in ((other, "x:latest"), (other, "a"), (one, "y")):
                with pytest.raises(AdapterRefused, match="of another model"):
                    with router.claim_name(engine, name):
                        pass
        with router.claim_name(other, "x"):
            pass


async def test_an_engine_that_cannot_wake_fails_with_the_reason(
    autojump_clock: object,
) -> None:
    models = Models(a=1, b=1)
    async with open_router(models.router), models.router.hold("b"):
        await models.use("a", 1)
        models.open["a"].show(phase="asleep", level=2)
        await wait_all_tasks_blocked()
        models.open["a"].show(phase="asleep", level=2, failure="memory is short")
        # Its engine has not ended yet.
        with pytest.raises(ModelFailed, match="memory is short"):
            await models.use("a", 1)
        await wait_all_tasks_blocked()
        assert models.states() == {"a": "failed", "b": "loaded"}
        with pytest.raises(ModelFailed, match="memory is short"):
            await models.use("a", 1)
        await trio.sleep(RETRY_SECONDS)
        await models.use("a", 1)
        assert models.events == ["+b", "+a", "-a", "+a"]


async def test_a_model_that_sleeps_makes_room_before_it_wakes(
    autojump_clock: object,
) -> None:
    models = Models(budget=10, a=6, b=6)
    router = models.router
    async with open_router(router), trio.open_nursery() as nursery:
        await models.use("a", 1)
        models.open["a"].show(phase="asleep", level=2, memory_bytes=2)
        await models.use("b", 1)
        # Both are there: a with 2 bytes.
        views = [each.view for each in router.describe()]
        assert [(each.state, each.num_bytes) for each in views] == [
            ("loaded", 2),
            ("loaded", 6),
        ]
        b_loaded_at = 2 * LOAD_SECONDS + 1
        await models.use("a", 1)
        assert trio.current_time() == b_loaded_at + RESIDENCE + 1
        assert models.events == ["+a", "+b", "-b"]
        # An order waits for the memory, too; and one that gives up changes nothing.
        models.open["a"].show(phase="asleep", level=2, memory_bytes=2, is_ordered=True)
        nursery.start_soon(models.use, "b", 100)
        await trio.sleep(LOAD_SECONDS + 1)
        visit = router.visit("a", "wake")
        with trio.move_on_after(1):
            await visit.wait()
        visit.leave()
        assert models.states() == {"a": "loaded", "b": "loaded"}
        visit = router.visit("a", "wake")
        await (await visit.wait()).wake()
        assert models.states() == {"a": "loaded", "b": "unloaded"}
        visit.leave()
        assert [each.view.num_bytes for each in router.describe()][0] == 6


async def test_a_load_that_turns_out_too_large_is_logged(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    models = Models(budget=1, a=1)
    models.sizes["a"] = 2
    async with open_router(models.router) as router:
        with pytest.raises(ModelFailed, match="it holds") as caught:
            async with router.hold("a"):
                pass
        await wait_all_tasks_blocked()
        [status] = router.describe()
    assert status.counts.num_failures == 1
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == f"a failed: {status.view.reason}"
    assert status.view.reason in str(caught.value)


async def test_models_take_turns_in_a_small_memory(autojump_clock: object) -> None:
    models = Models(budget=10, a=6, b=6)
    ends: list[tuple[str, float]] = []

    async def ask(name: str) -> None:
        await models.use(name, 5)
        ends.append((name, trio.current_time()))

    async with open_router(models.router), trio.open_nursery() as nursery:
        nursery.start_soon(ask, "a")
        await trio.sleep(LOAD_SECONDS + 1)
        nursery.start_soon(ask, "b")
    # b waits until a has been there for the minimum residence, and nobody has to wake it.
    assert ends == [("a", 15.0), ("b", LOAD_SECONDS + RESIDENCE + LOAD_SECONDS + 5)]
    assert models.events == ["+a", "-a", "+b", "-b"]


async def test_the_block_of_the_router_ends_with_its_own_error(
    autojump_clock: object,
) -> None:
    models = Models(a=1)
    with pytest.raises(ValueError, match="mine"):
        async with open_router(models.router), models.router.hold("a"):
            raise ValueError("mine")
    assert models.events == ["+a", "-a"]
