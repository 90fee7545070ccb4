"""Stalls of the event loop, and the tasks that cause them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from time import perf_counter

import trio

from .durations import Durations, Tally
from .offenders import Offender, OffenderTable

# A step that takes longer is slow. Python's switch interval is as long: any thread that
# holds the GIL may delay the event loop by that much.
SLOW_STEP_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class StallStatistics:
    """The measurements of a LoopStall.

    Attributes:
      steps: durations of tasks' steps, from one wait to the next.
      turns: durations of the loop's turns, in which it looks at no socket.
      threshold_seconds: longer steps are slow.
      offenders: the tasks with the longest slow steps, by name, longest first. If there
        are more names than the table holds, "(others)" is last and has the rest.
    """

    steps: Durations
    turns: Durations
    threshold_seconds: float
    offenders: tuple[Offender, ...]


class LoopStall(trio.abc.Instrument):
    """Finds the tasks that block an event loop; works in any trio program.

        stall = LoopStall()
        trio.lowlevel.add_instrument(stall)
        ...
        print(stall.describe())

    While a step of a task runs, no other task runs, and the loop looks at no socket before
    the last step of its turn. Wall time counts: a step is also long if another thread held
    the GIL, the collector ran, or the system gave the core to another process.

    It costs 1 us a turn and 1 us a step; trio's calls of any two hooks are 0.7 us of
    the latter. A server whose device cost nothing spent 1.5 to 2 us more on each chunk,
    which takes 50 to 65 us (bench/instrument.py; 2 shared cores). So it may always stay
    on.

    One object watches one loop at a time.

    Args:
      threshold_seconds: a step that takes longer is slow, and its task's name is kept.
      num_offenders: names that are kept; memory is bounded whatever tasks are called.
      clock: rising seconds.

    Raises:
      ValueError: an argument is out of range.
    """

    __slots__ = (
        "_clock",
        "_threshold",
        "_num_offenders",
        "_step_began",
        "_turn_began",
        "_steps",
        "_turns",
        "_offenders",
    )

    def __init__(
        self,
        *,
        threshold_seconds: float = SLOW_STEP_SECONDS,
        num_offenders: int = 10,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not 0 <= threshold_seconds < math.inf:
            raise ValueError("threshold_seconds must be 0 or more")
        if num_offenders < 1:
            raise ValueError("num_offenders must be at least 1")
        self._clock = clock
        self._threshold = threshold_seconds
        self._num_offenders = num_offenders
        self.reset()

    def reset(self) -> None:
        """Forget everything; the step and the turn that are under way do not count.

        Call it before an instrument that was removed is added again: otherwise the time
        between counts as one step.
        """
        self._forget_beginnings()
        self._steps = Tally(quick_limit=self._threshold)
        self._turns = Tally()
        self._offenders = OffenderTable(self._num_offenders)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step_began = self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = self._clock() - self._step_began
        steps = self._steps
        if seconds <= steps.quick_limit:
            steps.num_quick += 1
            steps.quick_seconds += seconds
        else:
            self._note_step(task.name, seconds)

    def after_io_wait(self, timeout: float) -> None:
        self._turn_began = self._clock()

    def before_io_wait(self, timeout: float) -> None:
        seconds = self._clock() - self._turn_began
        turns = self._turns
        if seconds <= turns.quick_limit:
            turns.num_quick += 1
            turns.quick_seconds += seconds
        elif not math.isnan(seconds):
            turns.add(seconds)

    def after_run(self) -> None:
        self._forget_beginnings()

    def _forget_beginnings(self) -> None:
        # The task that adds or resets an instrument is in the middle of a step, and the
        # end of this step will be reported. Its duration is computed from NaN, so it is
        # NaN, and the only comparison on the quick path is false.
        self._step_began = math.nan
        self._turn_began = math.nan

    def _note_step(self, name: str, seconds: float) -> None:
        if math.isnan(seconds):
            return
        self._steps.add(seconds)
        if seconds > self._threshold:
            self._offenders.add(name, seconds)

    def statistics(self) -> StallStatistics:
        return StallStatistics(
            steps=self._steps.statistics(),
            turns=self._turns.statistics(),
            threshold_seconds=self._threshold,
            offenders=self._offenders.list_offenders(),
        )

    def describe(self) -> str:
        """Return the statistics as short lines, the worst task first."""
        seen = self.statistics()
        longest_step = _ms(seen.steps.longest_seconds)
        over = f"over {_ms(seen.threshold_seconds)}"
        longest_turn = _ms(seen.turns.longest_seconds)
        lines = [
            f"{seen.steps.num_durations} task steps, longest {longest_step}",
            f"{seen.turns.num_durations} loop turns, longest {longest_turn}",
            *(f"{over}: {_describe_offender(each)}" for each in seen.offenders),
        ]
        return "\n".join(lines)


def _describe_offender(offender: Offender) -> str:
    return (
        f"{offender.name} {offender.num_steps} x, "
        f"longest {_ms(offender.longest_seconds)}, "
        f"{_ms(offender.total_seconds)} in all"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
