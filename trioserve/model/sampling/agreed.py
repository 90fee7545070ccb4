"""One choice of tokens for all processes that share the layers.

Every process has all logits, but only the first one samples: grammars are computed in threads
and plug-ins may do anything, so the choices of several processes would differ.
"""

from __future__ import annotations

from torch import Tensor

from ...types.plan import StepPlan
from ..device.tensors import send_ids
from ..shards.group import TensorGroup
from ..step.layout import StepInputs
from ..step.slots import SlotTables
from .launched import LaunchedStep
from .selecting import LogitRows, LogitSelector
from .writing import SamplingWriter


class LeadingWriter:
    """The StepWriter of the first process: it samples, and sends the tokens to the others.

    Args:
      tables: keep the sampled tokens.
    """

    def __init__(
        self, sampling: SamplingWriter, tables: SlotTables, group: TensorGroup
    ) -> None:
        self._sampling = sampling
        self._tables = tables
        self._group = group

    def begin(self, plan: StepPlan) -> None:
        self._sampling.begin(plan)

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        return self._sampling.select(plan, inputs)

    def write(self, plan: StepPlan, rows: LogitRows, output: Tensor) -> LaunchedStep:
        launched = self._sampling.write(plan, rows, output)
        slots = _list_slots(plan)
        if slots:
            # Not the tokens of the step: the slot of a skipped row keeps its last token.
            slot_ids = send_ids(slots, output.device)
            self._group.broadcast(self._tables.last_token_ids[slot_ids])
        return launched


class FollowingWriter:
    """The StepWriter of the other processes: it receives the tokens of the first one."""

    def __init__(self, tables: SlotTables, group: TensorGroup) -> None:
        self._selector = LogitSelector(tables)
        self._tables = tables
        self._group = group

    def begin(self, plan: StepPlan) -> None:
        self._selector.begin(plan)

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        return self._selector.select(plan, inputs)

    def write(self, plan: StepPlan, rows: LogitRows, output: Tensor) -> LaunchedStep:
        slots = _list_slots(plan)
        if slots:
            slot_ids = send_ids(slots, output.device)
            token_ids = self._tables.last_token_ids[slot_ids]
            self._group.broadcast(token_ids)
            self._tables.keep_sampled(slot_ids, token_ids)
        return LaunchedStep(step_id=plan.step_id)


def _list_slots(plan: StepPlan) -> list[int]:
    return [row.slot for row in plan.rows if row.sample]
