"""The record of a simulation: steps and messages, to be drawn and counted later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...types.plan import StepPlan
from ...types.transfers import Transfer

StepKind = Literal["chunk", "decode", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The work of a stage on a step.

    Args:
      begin, end: seconds of the simulation.
      chunks: (number of the request, number of the chunk from 1) of each chunk of a
        prompt in the step.
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
    """A transfer that has been received.

    Args:
      sent_at, taken_at: seconds of the simulation.
    """

    transfer: Transfer
    sent_at: float
    taken_at: float


@dataclass(slots=True)
class Record:
    """All steps and messages of a simulation, each list in order.

    Args:
      sent: every transfer that was sent, received or not.
      num_steps: steps that computed anything.
    """

    bars: list[Bar] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    num_steps: int = 0

    def measure_utilization(
        self, num_stages: int, begin: float, end: float
    ) -> tuple[float, ...]:
        """Return the part of these seconds in which each stage worked."""
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
    """Finds the chunks of prompts in plans; call it for every plan, in order."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}

    def read(self, plan: StepPlan) -> tuple[StepKind, tuple[tuple[int, int], ...]]:
        for start in plan.starts:
            # After a preemption, the earlier output is computed like a prompt.
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
