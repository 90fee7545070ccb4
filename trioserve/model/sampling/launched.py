"""A step that the device has been given.

A step is launched and finished. To launch a step is to give the device all its work. Its
tokens stay on the device, where the next step reads them, and are on their way to the
host, where `finish` waits for them. So the next step is launched before this one is
finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...types.output import SequenceError, StepResult, TokenLogprobs
from .dead_ends import DeadEnds
from .host_copy import copy_to_host
from .logprobs import LogprobReports


class SampledIds:
    """The tokens of one step, one for each row.

    Args:
      in_turn: see copy_to_host.

    Attributes:
      on_device: (num_rows,) int64
    """

    def __init__(self, token_ids: Tensor, *, in_turn: bool = False) -> None:
        self.on_device = token_ids
        self._copy = copy_to_host(token_ids, in_turn=in_turn)
        self._read: list[int] | None = None

    def read(self) -> list[int]:
        """Wait for the ids; any thread may call this."""
        if self._read is None:
            self._read = self._copy.read().tolist()
        return self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The result of the sampler.

    Args:
      ids: one for each row.
      reported: the rows that asked for log probabilities.
      reports: their log probabilities; None if no row asked.
      dead_ends: the rows that may have no token; None if there are none.
    """

    ids: SampledIds
    reported: tuple[int, ...] = ()
    reports: LogprobReports | None = None
    dead_ends: DeadEnds | None = None

    def read_errors(self) -> dict[int, SequenceError]:
        """Wait for the tokens; returns why sequences cannot go on, by row."""
        return {} if self.dead_ends is None else self.dead_ends.read_errors()

    def read_reports(self) -> dict[int, TokenLogprobs]:
        """Wait for the log probabilities; returns them by row."""
        if self.reports is None:
            return {}
        return dict(zip(self.reported, self.reports.read()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """A step that the device is computing, or has computed.

    Args:
      slots: the slots of the rows that have sampled, in batch order.
      sampled: their new tokens; None if no row has sampled.
      skipped: places of skipped rows among all rows that sample, rising.
      late: as in StepResult.
      prompt_reports: slot -> log probabilities of its prompt, in parts.
    """

    step_id: int
    slots: tuple[int, ...] = ()
    sampled: Sampled | None = None
    skipped: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    prompt_reports: dict[int, list[LogprobReports]] = field(default_factory=dict)

    def finish(self) -> StepResult:
        """Wait for the result of the step; any thread may call this."""
        sampled = self.sampled
        reports = {} if sampled is None else sampled.read_reports()
        tokens: list[tuple[int, ...]] = []
        if sampled is not None:
            tokens += zip(sampled.ids.read())
        for place in self.skipped:
            tokens.insert(place, ())
        errors = {} if sampled is None else sampled.read_errors()
        return StepResult(
            step_id=self.step_id,
            sampled=tuple(tokens),
            errors={self.slots[row]: error for row, error in errors.items()},
            late=self.late,
            logprobs={self.slots[row]: (report,) for row, report in reports.items()},
            prompt_logprobs={
                slot: tuple(report for part in parts for report in part.read())
                for slot, parts in self.prompt_reports.items()
            },
        )
