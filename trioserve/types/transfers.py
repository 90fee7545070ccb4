"""The transfers between the stages of a pipeline in a step: a function of its plan alone.

    stage 0  -- hidden -->  stage 1  -- hidden -->  ...  stage N - 1
       ^                                                    |
       +------------------- sampled tokens -----------------+

The stages are different processes. Each must expect exactly the transfers that another one
sends, or both wait for ever. So all stages derive them from the plan, which they all have.

Tokens go back only for steps in which a row samples. Most chunks of long prompts do not
sample. If the first stage waited for the last one in every step, the pipeline would be
useless.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import msgspec

from .plan import StepPlan


class Transfer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message between two stages.

    Args:
      what: "hidden" is the output of the sender's layers for every token of the step;
        "sampled" is the new token ids.
      sender, receiver: stages, from 0.
      num_rows: tokens of the step, or rows of it that sample.
    """

    step_id: int
    what: Literal["hidden", "sampled"]
    sender: int
    receiver: int
    num_rows: int


def list_transfers(plan: StepPlan, num_stages: int) -> tuple[Transfer, ...]:
    """Return the transfers of a step; each stage does its own in this order."""
    if num_stages == 1 or not plan.rows:
        return ()
    transfers = [
        Transfer(
            step_id=plan.step_id,
            what="hidden",
            sender=stage,
            receiver=stage + 1,
            num_rows=plan.num_tokens,
        )
        for stage in range(num_stages - 1)
    ]
    if plan.num_sampled:
        transfers.append(
            Transfer(
                step_id=plan.step_id,
                what="sampled",
                sender=num_stages - 1,
                receiver=0,
                num_rows=plan.num_sampled,
            )
        )
    return tuple(transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTransfer:
    """Sampled tokens that the first stage receives.

    Args:
      step_id: the step that sampled them.
      slots: the slot of each token; None for a token that is out of date, because the
        slot has another sequence or a later token now.
    """

    step_id: int
    slots: tuple[int | None, ...]


class AwaitedTokens:
    """The steps whose tokens the first stage must have before it runs a plan.

    The tokens of other steps may come while it computes.

    Args:
      depth: the most steps in flight. The tokens of older steps were sent long ago and are
        received even if no row reads them.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # (step, slots) of steps whose tokens were not received yet, the oldest first.
        self._open: deque[tuple[int, tuple[int, ...]]] = deque()
        # Slot -> the open step that samples its next token.
        self._sampled_by: dict[int, int] = {}

    def take(self, plan: StepPlan) -> tuple[SampledTransfer, ...]:
        """Return the transfers to receive before the plan runs, in the order of sending.

        It must be called for every plan, in their order.
        """
        for start in plan.starts:
            self._sampled_by.pop(start.slot, None)
        last = plan.step_id - self._depth
        for row in plan.rows:
            last = max(last, self._sampled_by.get(row.slot, last))
        arrivals = self._close(last)
        if plan.num_sampled:
            slots = tuple(row.slot for row in plan.rows if row.sample)
            self._open.append((plan.step_id, slots))
            self._sampled_by.update(dict.fromkeys(slots, plan.step_id))
        return arrivals

    def _close(self, last: int) -> tuple[SampledTransfer, ...]:
        arrivals = []
        while self._open and self._open[0][0] <= last:
            step_id, slots = self._open.popleft()
            is_new = [self._sampled_by.get(slot) == step_id for slot in slots]
            arrivals.append(
                SampledTransfer(
                    step_id=step_id,
                    slots=tuple(
                        slot if new else None for slot, new in zip(slots, is_new)
                    ),
                )
            )
            for slot, new in zip(slots, is_new):
                if new:
                    del self._sampled_by[slot]
        return tuple(arrivals)
