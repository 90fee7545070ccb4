"""The sleep of a core, beside its scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection
import logging
from typing import Protocol

import trio

from ...errors import EngineDied, StartupError
from ...types.sleep import SleepLevel, SleepPhase, SleepState
from .rules import PAUSE_SECONDS, IdleRule, SleepRules
from .view import SleepView

logger = logging.getLogger(__name__)


class Memory(Protocol):
    """The memory of a model, an executor.RestingExecutor.

    Attributes:
      levels: the levels at which it can be given back.
    """

    @property
    def levels(self) -> tuple[SleepLevel, ...]: ...

    async def give_back(self, level: SleepLevel) -> int:
        """Give memory back; no step is in flight. From level 1 it can go on to level 2.

        Returns:
          the bytes that this process still holds
        """

    async def take_again(self) -> Collection[int]:
        """Take all memory again; then steps may come.

        Returns:
          the numbers of adapters that could not be loaded again

        Raises:
          StartupError: the model cannot be loaded again; all memory is given back.
        """


class Loop(Protocol):
    """The methods of a StepLoop that this file uses."""

    on_idle: Callable[[], None]

    @property
    def is_idle(self) -> bool: ...

    def hold(self) -> None: ...

    def resume(self) -> None: ...


class CoreSleep(SleepView):
    """Lets a core fall asleep and wake.

    Args:
      memory: of the model; None if it cannot be given back.
      loop: the core's; it makes no plans during the sleep.
      is_at_rest: says whether the core holds nothing for requests.
      forget: forgets all that the scheduler knows of lost memory.
      lose: takes the numbers of adapters that are gone.
    """

    def __init__(
        self,
        memory: Memory | None,
        idle: IdleRule,
        *,
        loop: Loop,
        is_at_rest: Callable[[], bool],
        forget: Callable[[], None],
        lose: Callable[[Collection[int]], None] = lambda numbers: None,
    ) -> None:
        super().__init__()
        self._memory = memory
        self._rules = SleepRules(idle)
        self._loop = loop
        self._is_at_rest = is_at_rest
        self._forget = forget
        self._lose = lose
        self._phase: SleepPhase = "awake"
        self._level: SleepLevel = 0
        self._held_bytes = 0
        self._failure = ""
        # For the task that sleeps, and for those that wait for it.
        self._has_order = trio.Event()
        self._has_changed = trio.Event()
        self._has_ended = False
        loop.on_idle = self.note_work
        self._publish()

    def note_work(self) -> None:
        """Note that work has come, or has ended."""
        self._rules.note_work(trio.current_time())
        if self._phase != "awake" or self._rules.order:
            self._has_order.set()

    async def sleep(self, level: SleepLevel, *, ends_requests: bool) -> None:
        self.check(level)
        self._rules.sleep(level, ends_requests=ends_requests)
        self._take_order()
        await self._wait_until(lambda: self._sleeps_at(level) or not self._rules.order)

    async def wake(self) -> None:
        self._rules.wake()
        self._failure = ""
        self._take_order()
        await self._wait_until(
            lambda: self._phase == "awake"
            or self._rules.order > 0
            or self._failure != ""
        )

    async def run(self) -> None:
        """Sleep and wake until cancelled."""
        self._rules.note_work(trio.current_time())
        try:
            while True:
                await self._stay_awake()
                await self._sleep_on()
                while not await self._wake():
                    await self._pause()
                    await self._sleep_on()
        finally:
            self._has_ended = True
            self._has_changed.set()

    async def _stay_awake(self) -> None:
        """Wait until it is time to sleep, and fall asleep."""
        while True:
            now, is_at_rest = trio.current_time(), self._rests()
            level = self._rules.choose_level(now, is_at_rest=is_at_rest)
            if level:
                self._rules.fall_asleep()
                self._phase = "falling asleep"
                self._publish()
                await self._give_back(level)
                return
            look_at = self._rules.find_next_look(now, is_at_rest=is_at_rest)
            with trio.move_on_at(look_at):
                await self._wait_order()

    async def _sleep_on(self) -> None:
        """Wait until somebody needs the model; an order may deepen the sleep."""
        while not self._rules.wants_wake(is_at_rest=self._is_at_rest()):
            if self._rules.order > self._level:
                await self._give_back(self._rules.order)
            else:
                await self._wait_order()

    async def _give_back(self, level: SleepLevel) -> None:
        assert self._memory is not None, "only levels of the memory are ordered"
        self._loop.hold()
        self._forget()
        self._held_bytes = await self._memory.give_back(level)
        self._phase, self._level = "asleep", level
        logger.info("asleep at level %d", level)
        self._publish()

    async def _wake(self) -> bool:
        """Wake; returns whether that was possible."""
        assert self._memory is not None, "it sleeps"
        began = trio.current_time()
        self._phase = "waking"
        self._publish()
        try:
            lost = await self._memory.take_again()
        except StartupError as error:
            logger.error("cannot wake: %s", error)
            self._rules.note_failed()
            self._phase, self._level, self._failure = "asleep", 2, str(error)
            # The engines end their requests.
            self._publish()
            return False
        self._lose(lost)
        self._phase, self._level = "awake", 0
        self._rules.note_awake(trio.current_time())
        self._loop.resume()
        logger.info("awake after %.2f s", trio.current_time() - began)
        self._publish()
        return True

    async def _pause(self) -> None:
        """Refuse requests after a failure: the next one would hardly have more memory."""
        with trio.move_on_after(PAUSE_SECONDS):
            while not self._rules.has_order:
                await self._wait_order()
        self._failure = ""
        self._publish()

    def _rests(self) -> bool:
        return self._loop.is_idle and self._is_at_rest()

    def _sleeps_at(self, level: SleepLevel) -> bool:
        return self._phase == "asleep" and self._level >= level

    def _take_order(self) -> None:
        self._has_order.set()
        self._publish()

    async def _wait_order(self) -> None:
        await self._has_order.wait()
        self._has_order = trio.Event()

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            if self._has_ended:
                raise EngineDied()
            await self._has_changed.wait()

    def _publish(self) -> None:
        phase = self._phase
        if phase == "awake" and self._rules.order:
            phase = "falling asleep"
        state = SleepState(
            phase=phase,
            level=self._level,
            is_ordered=self._rules.order > 0,
            ends_requests=self._rules.ends_requests,
            levels=() if self._memory is None else self._memory.levels,
            memory_bytes=self._held_bytes if phase == "asleep" else 0,
            failure=self._failure,
        )
        self._has_changed.set()
        self._has_changed = trio.Event()
        self._show(state)
