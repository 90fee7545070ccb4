"""A step that the device has been given.

A step is launched and finished. To launch a step is to give the device all its work. Its
tokens stay on the device, where the next step reads them, and are on their way to the
host, where `finish` waits for them. So the next step is launched before this one is
finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types.output import StepResult
from .logprobs import LogprobReports
from .sampled import Sampled


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
