"""Which of several models are loaded, and which have to leave: decisions without a clock or I/O.

unloaded --> loading --> loaded --> draining --> unloaded
                 |          |           ^
                 |          +-- its engine fails --> failed
                 +-- nobody waits any more --+
                 +-- it cannot be loaded --> failed --> loading, for a request after a pause

Requests hold tickets. Models whose requests wait form a queue, the longest wait first:

* A model is loaded when there is memory for it, and for all models before it in the queue.
* The models that leave for it are not used, and those used last leave last. They have been
  loaded for the minimum residence, so that two models do not take turns for each request.
* If that is not enough, models that are used leave, too, once the request has waited for the
  minimum residence. These end their requests and take no new ones meanwhile (draining). So
  every request gets its model in the end, however busy the others are.

A loaded model may sleep, and hold less. Its engine wakes for any request, so a request for it waits
in the same queue for the memory that the engine takes again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
import math
from typing import Final, Literal

ModelState = Literal["unloaded", "loading", "loaded", "draining", "failed"]

# What a request does with its model: it computes, reads the tokenizer alone, or is the order of
# an operator to wake it.
Purpose = Literal["compute", "read", "wake"]

# The states in which a model holds memory.
_HOLDING: Final = frozenset({"loading", "loaded", "draining"})


class Ticket:
    """The claim of a request to a model, from its choice to its end.

    Args:
      number: lower ones are served first.
      notify: is called when the state changes.

      purpose: of the request.

    Attributes:
      reason: of a refusal.
    """

    def __init__(
        self,
        model: str,
        number: int,
        asked_at: float,
        notify: Callable[[], None],
        *,
        purpose: Purpose = "compute",
    ) -> None:
        self.model = model
        self.number = number
        self.asked_at = asked_at
        self._purpose = purpose
        self.state: Literal["waiting", "granted", "refused"] = "waiting"
        self.reason = ""
        self._notify = notify

    def wakes(self, *, is_ordered: bool) -> bool:
        """Return whether a model that sleeps wakes for it.

        Args:
          is_ordered: it sleeps by an order, so that its engine refuses requests.
        """
        if self._purpose == "compute":
            return not is_ordered
        return self._purpose == "wake"

    def grant(self) -> None:
        self.state = "granted"
        self._notify()

    def refuse(self, reason: str) -> None:
        self.state, self.reason = "refused", reason
        self._notify()


@dataclass(slots=True, kw_only=True)
class _Model:
    """A model and its tickets.

    Attributes:
      estimate: bytes that it may take, as far as its files tell.
      size: bytes; the estimate until the model was loaded once.
      is_measured: the size is not an estimate.
      reason: of the last failure.
      wish: the operator's ticket, which waits until the model is loaded.
      is_new: no request has had it since it was loaded.
      is_leaving: it was told to leave, and not only for another model.
      is_closing: its engine ends now.
      asleep_size: bytes that it holds while it sleeps; None while it is awake.
      is_ordered: it sleeps by an order. Then its engine refuses requests, and wakes for none.
      may_wake: the memory for its waking is free.
      since: when its load, or its waking, ended.
      used_at: when the last request left it.
      retry_at: after a failure, when the next request may try again.
    """

    name: str
    estimate: int
    size: int
    is_measured: bool = False
    state: ModelState = "unloaded"
    reason: str = ""
    waiting: list[Ticket] = field(default_factory=list)
    users: set[Ticket] = field(default_factory=set)
    wish: Ticket | None = None
    is_new: bool = False
    is_leaving: bool = False
    is_closing: bool = False
    asleep_size: int | None = None
    is_ordered: bool = False
    may_wake: bool = False
    since: float = -math.inf
    used_at: float = -math.inf
    retry_at: float = -math.inf

    @property
    def first(self) -> Ticket | None:
        """The oldest ticket that waits, or the operator's."""
        tickets = self.waiting[:1] + ([] if self.wish is None else [self.wish])
        return min(tickets, key=lambda each: each.number, default=None)

    @property
    def is_held(self) -> bool:
        return self.state in _HOLDING

    @property
    def stays(self) -> bool:
        """True if it holds memory, and is not on its way out."""
        return self.state in ("loading", "loaded")

    @property
    def is_asleep(self) -> bool:
        """True if it holds less than its size, and none of its requests wakes it."""
        if self.asleep_size is None:
            return False
        return not any(each.wakes(is_ordered=self.is_ordered) for each in self.users)

    @property
    def held_size(self) -> int:
        """The bytes that it holds, if it holds any."""
        if self.asleep_size is None or not self.is_asleep:
            return self.size
        return min(self.asleep_size, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """The state of a model, for those who ask.

    Args:
      reason: of the last failure; empty if there was none since the last load.
      num_bytes: what it holds, or will hold when it is loaded; an estimate until it was loaded
        once.
    """

    name: str
    state: ModelState
    reason: str
    num_bytes: int
    is_measured: bool
    num_users: int
    num_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The things to do now.

    Args:
      load: models whose load begins.
      close: models whose engine, or load, ends.
      wakes_at: when to decide again, if nothing happens before.
    """

    load: tuple[str, ...]
    close: tuple[str, ...]
    wakes_at: float


class ModelPolicy:
    """Decides about several models; times are seconds of any clock.

    After every other call, the caller asks `decide` and does what it says, unless `is_settled`.

    Args:
      sizes: an estimate of the bytes of each model, by name.
      budget: the bytes that all models may hold together; None sets no limit.
      min_residence: seconds for which a loaded model stays at least.
      pause: seconds after a failure in which requests are refused.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        *,
        budget: int | None,
        min_residence: float,
        pause: float,
    ) -> None:
        self._models = {
            name: _Model(name=name, estimate=size, size=size)
            for name, size in sizes.items()
        }
        self._budget = math.inf if budget is None else budget
        self._min_residence = min_residence
        self._pause = pause
        self._numbers = count()

    @property
    def is_settled(self) -> bool:
        """True if nobody waits, and no model comes or goes: there is nothing to decide."""
        return not any(
            each.state in ("loading", "draining") or each.is_new or each.first
            for each in self._models.values()
        )

    def ask(
        self,
        name: str,
        now: float,
        notify: Callable[[], None],
        *,
        purpose: Purpose = "compute",
    ) -> Ticket:
        """Ask for a model; a ticket that is not refused must be given back by `leave`."""
        model = self._models[name]
        ticket = Ticket(name, next(self._numbers), now, notify, purpose=purpose)
        if reason := self._find_refusal(model, now):
            ticket.refuse(reason)
        else:
            model.waiting.append(ticket)
            self._grant_free(model)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> None:
        """Give a ticket back: the request has ended, or waits no longer."""
        model = self._models[ticket.model]
        if ticket in model.users:
            model.users.remove(ticket)
            model.used_at = now
        elif ticket in model.waiting:
            model.waiting.remove(ticket)

    def load(self, name: str, now: float, notify: Callable[[], None]) -> Ticket:
        """Ask for a model without a request; the load goes on if nobody waits for it.

        The ticket is granted, or refused, when the load has ended. It is not given back.
        A model that was too large is measured again.
        """
        model = self._models[name]
        if model.wish is not None:
            return model.wish
        ticket = Ticket(name, next(self._numbers), now, notify)
        model.retry_at = -math.inf
        if not model.is_held and self._find_excess(model):
            # The resident memory of a process depends on the machine, too.
            model.size, model.is_measured = model.estimate, False
        if reason := self._find_refusal(model, now):
            ticket.refuse(reason)
        else:
            model.wish = ticket
            self._grant_free(model)
        return ticket

    def unload(self, name: str) -> None:
        """Let a model leave when its requests have ended.

        A load ends unless requests wait for it. Later requests load the model again.
        """
        model = self._models[name]
        if model.wish is not None:
            wish, model.wish = model.wish, None
            wish.refuse("it was unloaded")
        if model.state in ("loaded", "draining"):
            model.state, model.is_leaving = "draining", True
        if model.state == "failed":
            model.state, model.reason, model.retry_at = "unloaded", "", -math.inf

    def note_loaded(self, name: str, num_bytes: int, now: float) -> str:
        """Note the end of a load, and the bytes that the model really holds.

        Returns:
          Why it has to leave at once; empty if it may stay.
        """
        model = self._models[name]
        model.size, model.is_measured = num_bytes, True
        if model.is_closing:
            return ""
        model.state, model.reason, model.is_new = "loaded", "", True
        model.since = model.used_at = now
        if reason := self._find_excess(model):
            model.state, model.is_leaving = "draining", True
            self._fail(model, reason, now)
        return reason

    def note_sleep(self, name: str, num_bytes: int | None, *, is_ordered: bool) -> None:
        """Note that a loaded model sleeps, or is awake or about to be.

        Args:
          num_bytes: the bytes that it holds while it sleeps; None if it does not.
          is_ordered: it sleeps by an order, until another order.
        """
        model = self._models[name]
        model.asleep_size, model.is_ordered = num_bytes, is_ordered

    def note_failed(self, name: str, reason: str, now: float) -> None:
        """Note that a load has failed, or an engine; its memory is free again."""
        model = self._models[name]
        self._fail(model, reason, now)
        self._reset(model, "failed")

    def note_closed(self, name: str) -> None:
        """Note that an engine, or a load, has ended because it was told to."""
        model = self._models[name]
        self._reset(model, "failed" if model.reason else "unloaded")

    def decide(self, now: float) -> Decision:
        """Return the things to do now, and grant tickets of models that are loaded."""
        for model in self._models.values():
            if model.state == "draining" and not (model.is_leaving or model.is_closing):
                # Whether others still need its memory is found out below.
                model.state = "loaded"
            elif model.state == "loading" and model.first is None:
                model.state = "draining"
            if model.is_ordered:
                self._grant_free(model)
        self._make_room_for_new()
        load, wakes_at = self._serve_queue(now)
        while self._grant(now):
            # A model whose tickets are granted may leave for those behind them.
            more, wakes_at = self._serve_queue(now)
            load += more
        return Decision(load=load, close=tuple(self._close()), wakes_at=wakes_at)

    def describe(self) -> list[ModelView]:
        """Return the states of all models, in their order."""
        return [
            ModelView(
                name=each.name,
                state=each.state,
                reason=each.reason,
                num_bytes=each.held_size,
                is_measured=each.is_measured,
                num_users=len(each.users),
                num_waiting=len(each.waiting),
            )
            for each in self._models.values()
        ]

    def _find_refusal(self, model: _Model, now: float) -> str:
        if model.state == "failed" and now < model.retry_at:
            return model.reason
        return self._find_excess(model)

    def _find_excess(self, model: _Model) -> str:
        if model.size <= self._budget:
            return ""
        verb = "holds" if model.is_measured else "needs at least"
        return (
            f"it {verb} {model.size / 2**20:.1f} MiB, and all models may hold "
            f"{self._budget / 2**20:.1f} MiB; "
            "kv_cache_memory bounds a KV cache"
        )

    def _fail(self, model: _Model, reason: str, now: float) -> None:
        model.reason, model.retry_at = reason, now + self._pause
        waiting, model.waiting = model.waiting, []
        wish, model.wish = model.wish, None
        for ticket in [*waiting, *([] if wish is None else [wish])]:
            ticket.refuse(reason)

    def _reset(self, model: _Model, state: ModelState) -> None:
        """Forget an engine that has ended. Its tickets count for a later one no more."""
        model.state = state
        model.users = set()
        model.is_new = model.is_leaving = model.is_closing = False
        model.asleep_size, model.is_ordered = None, False

    def _make_room_for_new(self) -> None:
        """Let models leave if a load has taken more than was expected.

        Unused ones leave first. If they are too small, the new model leaves, and waits in
        the queue again, with a size that is now known.
        """
        excess = _count(m for m in self._models.values() if m.stays) - self._budget
        idle = [m for m in self._list_loaded() if not (m.users or m.is_new)]
        if _count(idle) < excess:
            idle = [m for m in self._list_loaded() if m.is_new][::-1]
        for model in idle:
            if excess <= 0:
                break
            model.state = "draining"
            excess -= model.held_size

    def _serve_queue(self, now: float) -> tuple[tuple[str, ...], float]:
        """Begin loads and drains; returns the loads, and the time of the next decision."""
        models = self._models.values()
        # Free now, and free when all models have left that are on their way.
        free = self._budget - _count(m for m in models if m.is_held)
        left = self._budget - _count(m for m in models if m.stays)
        queue = sorted(
            (model.first.number, model.name)
            for model in models
            if model.first is not None and (not model.stays or model.is_asleep)
        )
        load: list[str] = []
        wakes_at = math.inf
        # Victims join the queue, behind the request that they leave for.
        for _, name in queue:
            model = self._models[name]
            model.may_wake = False
            needed = model.size - (model.held_size if model.stays else 0)
            if left < needed:
                victims, wait = self._choose_victims(model, needed - left, now)
                wakes_at = min(wakes_at, wait)
                for victim in victims:
                    victim.state = "draining"
                    left += victim.held_size
                    if victim.first is not None and not victim.is_asleep:
                        insort(queue, (victim.first.number, victim.name))
            left -= needed
            if left < 0 or free < needed:
                continue
            # A model that drains has to leave before it comes back.
            if model.stays:
                free -= needed
                model.may_wake = True
            elif not model.is_held:
                free -= needed
                model.state = "loading"
                load.append(name)
        return tuple(load), wakes_at

    def _choose_victims(
        self, claimant: _Model, missing: float, now: float
    ) -> tuple[list[_Model], float]:
        """Return the models that leave for another one, or when to look again.

        Nobody leaves if that is not enough.

        Args:
          missing: bytes.
        """
        first = claimant.first
        assert first is not None, "models of the queue have a ticket"
        idle: list[_Model] = []
        used: list[_Model] = []
        wakes_at = math.inf
        for model in self._list_loaded():
            if model.first is not None and model.first.number <= first.number:
                continue
            may_leave_at = model.since + self._min_residence
            if model.users or model.first is not None:
                may_leave_at = max(may_leave_at, first.asked_at + self._min_residence)
            if may_leave_at > now:
                wakes_at = min(wakes_at, may_leave_at)
            elif model.users or model.first is not None:
                used.append(model)
            else:
                idle.append(model)
        candidates = idle
        if _count(idle) < missing:
            candidates = idle + used
        if _count(candidates) < missing:
            return [], wakes_at
        return _choose_enough(candidates, missing), math.inf

    def _list_loaded(self) -> list[_Model]:
        """Return the loaded models; the ones that were used last come last."""
        loaded = [each for each in self._models.values() if each.state == "loaded"]
        return sorted(loaded, key=lambda each: each.used_at)

    def _grant_free(self, model: _Model) -> None:
        """Grant the tickets of a loaded model that do not wake it."""
        if model.state != "loaded" or model.is_new:
            return
        if model.wish is not None:
            wish, model.wish = model.wish, None
            wish.grant()
        waiting, model.waiting = model.waiting, []
        for ticket in waiting:
            if model.is_asleep and ticket.wakes(is_ordered=model.is_ordered):
                model.waiting.append(ticket)
            else:
                model.users.add(ticket)
                ticket.grant()

    def _grant(self, now: float) -> bool:
        """Grant tickets of models that are loaded, or may wake; returns whether there were any."""
        has_granted = False
        held = _count(m for m in self._models.values() if m.is_held)
        for model in self._models.values():
            # Until the others have left, a model that took more than expected waits.
            if model.state != "loaded" or (model.is_new and held > self._budget):
                continue
            if model.is_asleep:
                if not model.may_wake:
                    continue
                model.since = now
            model.may_wake = False
            waiting, model.waiting = model.waiting, []
            wish, model.wish = model.wish, None
            model.users.update(waiting)
            model.is_new = False
            for ticket in [*waiting, *([] if wish is None else [wish])]:
                has_granted = True
                ticket.grant()
        return has_granted

    def _close(self) -> Iterable[str]:
        for model in self._models.values():
            is_over = model.state == "draining" and not model.users
            if is_over and not model.is_closing:
                model.is_closing = True
                yield model.name


def _count(models: Iterable[_Model]) -> int:
    """Return the bytes of models."""
    return sum(each.held_size for each in models)


def _choose_enough(candidates: list[_Model], missing: float) -> list[_Model]:
    """Return models with so many bytes, from the front; none of them leaves in vain."""
    chosen: list[_Model] = []
    for model in candidates:
        if missing <= 0:
            break
        chosen.append(model)
        missing -= model.held_size
    for model in reversed(chosen[:]):
        # A large one at the end may have made a smaller one before it needless.
        if missing + model.held_size <= 0:
            chosen.remove(model)
            missing += model.held_size
    return chosen
