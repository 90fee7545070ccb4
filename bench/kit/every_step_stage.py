"""A stage of a pipeline that sends tokens back in every step.

trioserve's own stage sends none back in most steps of long prompts. bench/pipeline.py
starts this stage in its place, to measure the gain of that.

    python -m kit.every_step_stage DESCRIPTOR PARENT
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trioserve.executor.pipeline.messages import ToStage
from trioserve.model.stages.links import Channel, Channels, Pending, StageLinks
from trioserve.model.stages.stage import LoadedStage
from trioserve.processes import run_as_child
from trioserve.startup import stage_process
from trioserve.types.plan import StepPlan
from trioserve.types.transfers import Transfer


class EveryStepLinks(StageLinks):
    """Links that send tokens back in every step.

    The first stage waits for the tokens of the step before. A step that samples nothing
    sends one token, which is not used.
    """

    def __init__(self, stage: LoadedStage, channels: Channels) -> None:
        if channels.tokens is not None:
            channels = replace(channels, tokens=InTurnChannel(channels.tokens))
        super().__init__(stage, channels)

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

    def send_sampled(self, plan: StepPlan, token_ids: Tensor | None) -> None:
        if token_ids is None:
            token_ids = torch.zeros(1, dtype=torch.int64)
        super().send_sampled(plan, token_ids)


class InTurnChannel:
    """A channel that waits for each message before it expects the next one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last: Message | None = None

    def send(self, tensor: Tensor) -> None:
        self._channel.send(tensor)

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> Message:
        if self._last is not None:
            self._last.wait()
        self._last = Message(self._channel.expect(shape, dtype))
        return self._last


@dataclass
class Message:
    """A message that can be waited for more than once."""

    pending: Pending
    tensor: Tensor | None = None

    def wait(self) -> Tensor:
        if self.tensor is None:
            self.tensor = self.pending.wait()
        return self.tensor


if __name__ == "__main__":
    stage_process.make_links = EveryStepLinks
    run_as_child(stage_process.serve_stage, receives=ToStage)
