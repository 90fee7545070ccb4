"""A stage of a pipeline that sends tokens back in every step.

bench/pipeline.py starts it in place of trioserve's own stage, to measure what a pipeline
gains because most steps of long prompts send no tokens back.

    python -m kit.every_step_stage DESCRIPTOR PARENT
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trioserve.model.stages import StageLinks
from trioserve.pipeline.messages import ToStage
from trioserve.processes import run_as_child
from trioserve.startup.stage_process import serve_stage
from trioserve.types.plan import StepPlan
from trioserve.types.transfers import Transfer


class EveryStepLinks(StageLinks):
    """Sends tokens back in every step; the first stage waits for those of the step before.

    A step that samples nothing sends one token that nobody reads.
    """

    def list_transfers(self, plan: StepPlan) -> tuple[Transfer, ...]:
        transfers = super().list_transfers(plan)
        if not transfers or plan.num_sampled:
            return transfers
        unread = Transfer(
            step_id=plan.step_id,
            what="sampled",
            sender=self.num_stages - 1,
            receiver=0,
            num_rows=1,
        )
        return *transfers, unread

    def expect_sampled(self, plan: StepPlan) -> None:
        self.expected_tokens = deque(
            (transfer, Arrived(pending.wait()))
            for transfer, pending in self.expected_tokens
        )
        super().expect_sampled(plan)

    def send_sampled(self, plan: StepPlan, token_ids: Tensor | None) -> None:
        if token_ids is None:
            token_ids = torch.zeros(1, dtype=torch.int64)
        super().send_sampled(plan, token_ids)


@dataclass(frozen=True)
class Arrived:
    """A message that has arrived already."""

    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor


if __name__ == "__main__":
    run_as_child(partial(serve_stage, links_type=EveryStepLinks), receives=ToStage)
