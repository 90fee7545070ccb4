"""A stage of a pipeline that sends tokens back in every step.

trioserve's own stage sends none back in most steps of long prompts. bench/pipeline.py
starts this stage in its place, to measure the gain of that.

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
    """Links that send tokens back in every step.

    The first stage waits for the tokens of the step before. A step that samples nothing
    sends one token, which is not used.
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
