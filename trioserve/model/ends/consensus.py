"""Writers of processes that decide together: one of them samples, and sends the tokens.

Every process that shares layers has all logits, but only the first one samples: grammars are
computed in threads and plug-ins may do anything, so the choices of several processes would
differ. The last stage of a pipeline sends its tokens to the first one, which reads them next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from ...types.plan import StepPlan
from ..device.tensors import send_ids
from ..sampling.launched import LaunchedStep
from ..sampling.selecting import LogitRows, LogitSelector
from ..shards.group import TensorGroup
from ..step.plain import StepOutput
from ..step.slots import SlotTables
from .protocols import StepWriter


class SendingWriter:
    """The StepWriter of a process that samples, and sends the tokens to others.

    Args:
      tables: keep the sampled tokens.
      send: sends the tokens of a plan's rows that sample; None if there are none.
    """

    def __init__(
        self,
        sampling: StepWriter,
        tables: SlotTables,
        send: Callable[[StepPlan, Tensor | None], None],
    ) -> None:
        self._sampling = sampling
        self._tables = tables
        self._send = send
        self.begin = sampling.begin
        self.find_skipped = sampling.find_skipped
        self.select = sampling.select
        self.is_capturable = sampling.is_capturable

    def write(
        self, plan: StepPlan, rows: LogitRows, output: StepOutput
    ) -> LaunchedStep:
        launched = self._sampling.write(plan, rows, output)
        slots = list_slots(plan)
        token_ids = None
        if slots:
            # Not the tokens of the step: the slot of a skipped row keeps its last token.
            last = self._tables.last_token_ids
            token_ids = last[send_ids(slots, last.device)]
        self._send(plan, token_ids)
        return launched


class FollowingWriter:
    """The StepWriter of the other processes: it receives the tokens of the first one."""

    is_capturable = False

    def __init__(self, tables: SlotTables, group: TensorGroup) -> None:
        self._tables = tables
        self._group = group
        selector = LogitSelector(tables)
        self.begin = selector.begin
        self.select = selector.select

    def find_skipped(self, plan: StepPlan) -> Collection[int]:
        raise NotImplementedError("layers with states are not split")

    def write(
        self, plan: StepPlan, rows: LogitRows, output: StepOutput
    ) -> LaunchedStep:
        slots = list_slots(plan)
        if slots:
            last = self._tables.last_token_ids
            slot_ids = send_ids(slots, last.device)
            token_ids = last[slot_ids]
            self._group.broadcast(token_ids)
            self._tables.keep_sampled(slot_ids, token_ids)
        return LaunchedStep(step_id=plan.step_id)


def lead(sampling: StepWriter, tables: SlotTables, group: TensorGroup) -> SendingWriter:
    """Let the writer of a group's first process send its tokens to the others."""

    def send(plan: StepPlan, token_ids: Tensor | None) -> None:
        if token_ids is not None:
            group.broadcast(token_ids)

    return SendingWriter(sampling, tables, send)


def list_slots(plan: StepPlan) -> list[int]:
    """Return the slots of the rows that sample."""
    return [row.slot for row in plan.rows if row.sample]
