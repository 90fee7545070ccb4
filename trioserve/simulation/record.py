"""What stages did and told each other, as it is drawn and counted afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..types.plan import StepPlan
from ..types.transfers import Transfer

StepKind = Literal["chunk", "decode", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stage at work on a step.

    Args:
      begin, end: seconds of the simulation.
      chunks: (request, chunk) of every prompt that the step has a part of; a request is
        known by its seed, and chunks are counted from 1.
    """

    stage: int
    step_id: int
    kind: StepKind
    begin: float
    end: float
    num_tokens: int
    chunks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A transfer that its receiver has taken in.

    Args:
      sent_at, taken_at: seconds of the simulation.
    """

    transfer: Transfer
    sent_at: float
    taken_at: float


@dataclass(slots=True)
class Record:
    """All that happened, each list in the order in which it did.

    Args:
      sent: every transfer that was sent, whether it has been taken in or not.
      num_steps: steps that computed anything.
    """

    bars: list[Bar] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    num_steps: int = 0

    def measure_utilization(
        self, num_stages: int, begin: float, end: float
    ) -> tuple[float, ...]:
        """Return the share of these seconds that each stage was at work."""
        busy = [0.0] * num_stages
        for bar in self.bars:
            busy[bar.stage] += max(0.0, min(bar.end, end) - max(bar.begin, begin))
        return tuple(seconds / (end - begin) for seconds in busy)


@dataclass(slots=True)
class _Slot:
    request: int
    num_known: int
    num_chunks: int = 0


class PlanReader:
    """Tells which of a plan's rows are parts of prompts; called for every plan, in order."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}

    def read(self, plan: StepPlan) -> tuple[StepKind, tuple[tuple[int, int], ...]]:
        for start in plan.starts:
            # Of one that was preempted, what it had written is computed like a prompt.
            num_known = len(start.prompt_token_ids) + len(start.output_token_ids)
            self._slots[start.slot] = _Slot(start.seed, num_known)
        chunks = []
        for row in plan.rows:
            slot = self._slots[row.slot]
            if row.start < slot.num_known:
                slot.num_chunks += 1
                chunks.append((slot.request, slot.num_chunks))
        if not chunks:
            return "decode", ()
        return "chunk" if len(chunks) == len(plan.rows) else "mixed", tuple(chunks)
