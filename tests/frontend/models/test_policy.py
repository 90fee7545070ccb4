"""The policy of several models: what is loaded, who leaves, and who is served next."""

from __future__ import annotations

import heapq
from itertools import count
import math

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from trioserve.frontend.models.policy import ModelPolicy, Purpose, Ticket

NAMES = ("a", "b", "c", "d")
BUDGET = 10
MIB = 2**20
RESIDENCE = 5.0
PAUSE = 3.0


def ignore() -> None:
    """A change of a ticket that nobody waits for."""


class World:
    """A policy, and engines that do what it says.

    Attributes:
      loading, open, closing: models with such an engine; their real bytes.
      asleep: open engines that sleep, and whether that is by an order.
    """

    def __init__(
        self, estimates: dict[str, int], sizes: dict[str, int], budget: int | None
    ) -> None:
        self.policy = ModelPolicy(
            estimates, budget=budget, min_residence=RESIDENCE, pause=PAUSE
        )
        self.sizes = sizes
        self.budget = math.inf if budget is None else budget
        self.now = 0.0
        self.loading: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.closing: dict[str, int] = {}
        self.asleep: dict[str, bool] = {}
        self.tickets: list[Ticket] = []
        self.wishes: list[Ticket] = []
        self.wakes_at = math.inf
        # Open engines that have served nobody.
        self.fresh: set[str] = set()

    def ask(self, name: str, purpose: Purpose = "compute") -> Ticket:
        ticket = self.policy.ask(name, self.now, ignore, purpose=purpose)
        if ticket.state != "refused":
            self.tickets.append(ticket)
        if ticket.state == "waiting":
            self.decide()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        self.tickets.remove(ticket)
        self.policy.leave(ticket, self.now)
        if not self.policy.is_settled:
            self.decide()

    def wish(self, name: str) -> None:
        self.wishes.append(self.policy.load(name, self.now, ignore))
        self.decide()

    def unload(self, name: str) -> None:
        self.policy.unload(name)
        self.decide()

    def finish_load(self, name: str) -> None:
        del self.loading[name]
        self.open[name] = self.sizes[name]
        self.fresh.add(name)
        self.policy.note_loaded(name, self.sizes[name], self.now)
        self.decide()

    def fall_asleep(self, name: str, num_bytes: int, *, is_ordered: bool) -> None:
        self.asleep[name] = is_ordered
        self.policy.note_sleep(name, num_bytes, is_ordered=is_ordered)
        self.decide()

    def list_waking(self) -> list[str]:
        """Return the engines that wake for what was granted."""
        granted = [t for t in self.tickets if t.state == "granted"]
        return [
            name
            for name, is_ordered in self.asleep.items()
            if any(t.model == name and t.wakes(is_ordered=is_ordered) for t in granted)
        ]

    def wake(self, name: str) -> None:
        del self.asleep[name]
        self.policy.note_sleep(name, None, is_ordered=False)
        self.decide()

    def fail(self, name: str) -> None:
        for engines in (self.loading, self.open, self.closing):
            engines.pop(name, None)
        self.fresh.discard(name)
        self.asleep.pop(name, None)
        self.tickets = [t for t in self.tickets if not self._has(t, name)]
        self.policy.note_failed(name, "it broke", self.now)
        self.decide()

    @staticmethod
    def _has(ticket: Ticket, name: str) -> bool:
        return ticket.model == name and ticket.state == "granted"

    def finish_close(self, name: str) -> None:
        del self.closing[name]
        self.policy.note_closed(name)
        self.decide()

    def decide(self) -> None:
        waking = set(self.list_waking())
        decision = self.policy.decide(self.now)
        self.wakes_at = decision.wakes_at
        assert self.wakes_at > self.now
        waited = {t.model for t in self.tickets if t.state == "waiting"}
        waited |= {t.model for t in self.wishes if t.state == "waiting"}
        used = {t.model for t in self.tickets if t.state == "granted"}
        for name in decision.close:
            assert name not in used, "what is used is not closed"
            # A load is only cancelled if nobody waits for it.
            assert name in self.open or name not in waited
            self.fresh.discard(name)
            self.asleep.pop(name, None)
            self.closing[name] = self.loading.pop(name, 0) or self.open.pop(name)
        for name in decision.load:
            assert name not in self.held, "a model is loaded once at a time"
            self.loading[name] = self.sizes[name]
        if decision.load or set(self.list_waking()) - waking:
            known = [each for each in self.policy.describe() if each.name in self.held]
            assert sum(each.num_bytes for each in known) <= self.budget
        self.tickets = [t for t in self.tickets if t.state != "refused"]
        for ticket in self.tickets:
            if ticket.state == "granted":
                assert ticket.model in self.open, "a request has a model that is loaded"
        self.check_budget()

    @property
    def held(self) -> dict[str, int]:
        return self.loading | self.open | self.closing

    def check_budget(self) -> None:
        """A new engine serves when all engines that are there fit into the budget."""
        views = self.policy.describe()
        granted = [*self.tickets, *self.wishes]
        served = {t.model for t in granted if t.state == "granted"}
        self.wishes = [each for each in self.wishes if each.state == "waiting"]
        if self.fresh & served:
            assert sum(each.num_bytes for each in views if each.name in self.held) <= (
                self.budget
            )
        self.fresh -= served

    def settle(self) -> None:
        """Let everything end that has begun; then nobody may still wait."""
        for _ in range(200):
            if self.loading:
                self.finish_load(min(self.loading))
            elif self.closing:
                self.finish_close(min(self.closing))
            elif waking := self.list_waking():
                self.wake(waking[0])
            elif granted := [t for t in self.tickets if t.state == "granted"]:
                self.leave(granted[0])
            elif self.wakes_at < math.inf:
                self.now = self.wakes_at
                self.decide()
            else:
                break
        assert not self.tickets, "no request waits for ever"
        assert not self.wishes


class Models(RuleBasedStateMachine):
    """Requests, operators, loads, failures and time, in any order."""

    @initialize(
        estimates=st.tuples(*[st.integers(0, 12)] * len(NAMES)),
        sizes=st.tuples(*[st.integers(1, 12)] * len(NAMES)),
        budget=st.sampled_from([BUDGET, BUDGET, None]),
    )
    def begin(
        self, estimates: tuple[int, ...], sizes: tuple[int, ...], budget: int | None
    ) -> None:
        self.world = World(dict(zip(NAMES, estimates)), dict(zip(NAMES, sizes)), budget)

    @rule(
        name=st.sampled_from(NAMES),
        purpose=st.sampled_from(["compute", "compute", "read"]),
    )
    def ask(self, name: str, purpose: Purpose) -> None:
        ticket = self.world.ask(name, purpose)
        if ticket.state == "refused":
            assert ticket.reason

    @precondition(lambda self: self.world.tickets)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(self.world.tickets)))

    @rule(name=st.sampled_from(NAMES))
    def wish(self, name: str) -> None:
        self.world.wish(name)

    @rule(name=st.sampled_from(NAMES))
    def unload(self, name: str) -> None:
        self.world.unload(name)

    @precondition(lambda self: self.world.loading)
    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        self.world.finish_load(data.draw(st.sampled_from(sorted(self.world.loading))))

    @precondition(lambda self: self.world.closing)
    @rule(data=st.data())
    def finish_close(self, data: st.DataObject) -> None:
        self.world.finish_close(data.draw(st.sampled_from(sorted(self.world.closing))))

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.world.fail(data.draw(st.sampled_from(sorted(self.world.held))))

    @precondition(lambda self: self.world.open)
    @rule(
        data=st.data(),
        num_bytes=st.sampled_from([0, 1, 20]),
        is_ordered=st.booleans(),
    )
    def fall_asleep(
        self, data: st.DataObject, num_bytes: int, is_ordered: bool
    ) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.open)))
        if not self.world.asleep.get(name):
            self.world.fall_asleep(name, num_bytes, is_ordered=is_ordered)

    @rule(name=st.sampled_from(NAMES), size=st.integers(1, 12))
    def change(self, name: str, size: int) -> None:
        """Let the next load hold more than was measured, or less."""
        self.world.sizes[name] = size

    @rule(name=st.sampled_from(NAMES))
    def use_and_fall_asleep(self, name: str) -> None:
        """Reach in one step what is seldom reached by many."""
        ticket = self.world.ask(name)
        if name in self.world.loading:
            self.world.finish_load(name)
        if ticket in self.world.tickets:
            self.world.leave(ticket)
        if name in self.world.open and name not in self.world.asleep:
            self.world.fall_asleep(name, 1, is_ordered=False)

    @precondition(lambda self: self.world.asleep)
    @rule(data=st.data())
    def order_wake(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.asleep)))
        self.world.ask(name, "wake")

    @precondition(lambda self: self.world.list_waking())
    @rule()
    def wake(self) -> None:
        self.world.wake(self.world.list_waking()[0])

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.decide()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


Models.TestCase.settings = settings(stateful_step_count=40)
test_nothing_used_leaves_the_budget_is_kept_and_nobody_waits_for_ever = Models.TestCase


LOAD_SECONDS = 2.0
CLOSE_SECONDS = 1.0
USE_SECONDS = 3.0


@given(
    sizes=st.tuples(*[st.integers(1, BUDGET)] * len(NAMES)),
    gaps=st.lists(
        st.tuples(st.sampled_from(NAMES), st.floats(0.0, 1.0)), min_size=50, max_size=90
    ),
)
def test_no_model_starves_beside_others_that_are_always_used(
    sizes: tuple[int, ...], gaps: list[tuple[str, float]]
) -> None:
    """Each model in front of another in the queue delays it for a bounded time."""
    known = dict(zip(NAMES, sizes))
    world = World(known, known, BUDGET)
    numbers = count()
    events: list[tuple[float, int, str, object]] = []

    def push(at: float, kind: str, what: object) -> None:
        heapq.heappush(events, (at, next(numbers), kind, what))

    at = 0.0
    for name, gap in gaps:
        at += gap
        push(at, "ask", name)
    seen: set[object] = set()
    longest = 0.0
    while True:
        for kind, engines in (("load", world.loading), ("close", world.closing)):
            for name in engines:
                if (kind, name) not in seen:
                    seen.add((kind, name))
                    after = LOAD_SECONDS if kind == "load" else CLOSE_SECONDS
                    push(world.now + after, kind, name)
        for ticket in world.tickets:
            if ticket.state == "granted" and ticket not in seen:
                seen.add(ticket)
                longest = max(longest, world.now - ticket.asked_at)
                push(world.now + USE_SECONDS, "leave", ticket)
        next_at = events[0][0] if events else math.inf
        if world.wakes_at < next_at:
            world.now = world.wakes_at
            world.decide()
            continue
        if not events:
            break
        world.now, _, kind, what = heapq.heappop(events)
        if isinstance(what, Ticket):
            world.leave(what)
        elif kind == "ask":
            assert world.ask(str(what)).state != "refused"
        elif kind == "load":
            seen.discard((kind, what))
            world.finish_load(str(what))
        else:
            seen.discard((kind, what))
            world.finish_close(str(what))
    assert not world.tickets
    turn = 2 * RESIDENCE + USE_SECONDS + CLOSE_SECONDS + LOAD_SECONDS
    assert longest <= len(NAMES) * turn


def make_world(budget: int | None = BUDGET, **sizes: int) -> World:
    return World(sizes, sizes, budget)


def list_states(world: World) -> dict[str, str]:
    return {each.name: each.state for each in world.policy.describe()}


def test_the_model_used_last_leaves_last_and_only_after_the_minimum_residence() -> None:
    world = make_world(a=5, b=5, c=5)
    for name in ("a", "b"):
        ticket = world.ask(name)
        world.finish_load(name)
        world.now += 1
        world.leave(ticket)
    world.now = 1.0
    world.leave(world.ask("a"))
    world.ask("c")
    assert list_states(world) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
    # b was loaded at 1 s, and a has been free to go since 5 s.
    assert world.wakes_at == RESIDENCE
    world.now = 7.0
    world.leave(world.ask("a"))
    assert list_states(world) == {"a": "loaded", "b": "draining", "c": "unloaded"}
    world.finish_close("b")
    assert list_states(world) == {"a": "loaded", "b": "unloaded", "c": "loading"}


def test_a_busy_model_drains_for_one_that_has_waited_long_enough() -> None:
    world = make_world(a=8, b=8)
    first = world.ask("a")
    world.finish_load("a")
    waiter = world.ask("b")
    world.now = RESIDENCE - 1
    assert world.ask("a").state == "granted"
    world.now = world.wakes_at
    assert world.now == RESIDENCE
    world.decide()
    late = world.ask("a")
    assert list_states(world) == {"a": "draining", "b": "unloaded"}
    assert late.state == "waiting"
    # The request that a drains for gives up, so a goes on.
    world.leave(waiter)
    assert list_states(world)["a"] == "loaded"
    assert late.state == "granted"
    assert first.state == "granted"


def test_a_small_model_passes_a_large_one_only_if_that_delays_nobody() -> None:
    world = make_world(a=6, b=8, c=2, d=4)
    world.ask("a")
    world.finish_load("a")
    large = world.ask("b")
    assert world.ask("c").state == "waiting"
    world.now = RESIDENCE
    world.decide()
    # a drains for b, and c fits beside both b and a. d does not fit beside b.
    world.ask("d")
    assert list_states(world) == {
        "a": "draining",
        "b": "unloaded",
        "c": "loading",
        "d": "unloaded",
    }
    assert large.state == "waiting"


def test_a_model_that_is_too_large_is_refused_at_once() -> None:
    world = World({"a": 11 * MIB}, {}, 10 * MIB)
    assert (
        world.ask("a").reason
        == "it needs at least 11.0 MiB, and all models may hold 10.0 MiB; "
        "kv_cache_memory bounds a KV cache"
    )
    # That is sometimes found out only by the load.
    world = World({"a": MIB}, {"a": 11 * MIB}, 10 * MIB)
    ticket = world.ask("a")
    world.finish_load("a")
    assert ticket.reason.startswith("it holds 11.0 MiB, and all models may hold 10.0")
    world.finish_close("a")
    assert world.ask("a").state == "refused"
    assert list_states(world) == {"a": "failed"}
    # An operator may have it measured again.
    world.sizes["a"] = 9
    world.wish("a")
    world.finish_load("a")
    assert list_states(world) == {"a": "loaded"}
    assert world.ask("a").state == "granted"


def test_a_failed_load_is_tried_again_by_a_request_after_a_pause() -> None:
    world = make_world(a=5)
    ticket = world.ask("a")
    world.fail("a")
    assert (ticket.state, ticket.reason) == ("refused", "it broke")
    world.now = PAUSE - 1
    assert world.ask("a").reason == "it broke"
    world.now = PAUSE
    again = world.ask("a")
    world.finish_load("a")
    assert again.state == "granted"


def make_sleeper(**sizes: int) -> World:
    """Return models of which a sleeps and holds 1 byte."""
    world = make_world(**sizes)
    ticket = world.ask("a")
    world.finish_load("a")
    world.leave(ticket)
    world.fall_asleep("a", 1, is_ordered=False)
    return world


def test_a_model_that_sleeps_leaves_its_memory_to_others() -> None:
    world = make_sleeper(a=8, b=8)
    ticket = world.ask("b")
    assert list_states(world) == {"a": "loaded", "b": "loading"}
    world.finish_load("b")
    # Now a waits until b may leave.
    sleeper = world.ask("a")
    assert sleeper.state == "waiting"
    # To read its tokenizer takes no memory.
    assert world.ask("a", "read").state == "granted"
    world.leave(ticket)
    world.now = RESIDENCE - 1
    world.decide()
    assert sleeper.state == "waiting"
    world.now = world.wakes_at
    assert world.now == RESIDENCE
    world.decide()
    assert list_states(world) == {"a": "loaded", "b": "draining"}
    assert sleeper.state == "waiting"
    world.finish_close("b")
    assert sleeper.state == "granted"
    assert world.ask("a").state == "granted"
    assert [each.num_bytes for each in world.policy.describe()] == [8, 8]


def test_a_model_that_sleeps_leaves_if_even_that_is_needed() -> None:
    world = make_sleeper(a=8, b=10)
    world.ask("b")
    assert world.wakes_at == RESIDENCE
    world.now = RESIDENCE
    # Its request waits behind the one of b.
    late = world.ask("a")
    assert list_states(world) == {"a": "draining", "b": "unloaded"}
    world.finish_close("a")
    assert list_states(world) == {"a": "unloaded", "b": "loading"}
    assert late.state == "waiting"


def test_only_an_order_wakes_a_model_that_sleeps_by_an_order() -> None:
    world = make_sleeper(a=8, b=8)
    world.ask("b")
    world.finish_load("b")
    waiting = world.ask("a")
    world.fall_asleep("a", 1, is_ordered=True)
    # Its engine refuses them, and that takes no memory.
    assert waiting.state == world.ask("a").state == "granted"
    order = world.ask("a", "wake")
    assert order.state == "waiting"
    world.now = RESIDENCE
    world.decide()
    assert list_states(world)["b"] == "draining"
    # Who orders it to wake gives up.
    world.leave(order)
    assert list_states(world) == {"a": "loaded", "b": "loaded"}
    # To load it is no order to wake.
    world.wish("a")
    assert not world.wishes
    assert list_states(world) == {"a": "loaded", "b": "loaded"}


def test_a_load_ends_when_nobody_waits_unless_the_operator_asked_for_it() -> None:
    world = make_world(a=5, b=5)
    world.leave(world.ask("a"))
    assert list_states(world)["a"] == "draining"
    world.wish("b")
    [wish] = world.wishes
    world.leave(world.ask("b"))
    assert list_states(world)["b"] == "loading"
    world.finish_load("b")
    assert wish.state == "granted"
    world.unload("b")
    assert list_states(world)["b"] == "draining"
