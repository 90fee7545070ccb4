"""The messages that a stage sends and receives in a step.

    before --hidden--> [ stage ] --hidden--> after
    last stage --tokens--> first stage

Both ends of every channel read from the plan which messages to exchange
(types/transfers.py), so sends and receives always match. A channel keeps the order of
messages; nothing else identifies them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...types.plan import StepPlan
from ...types.transfers import Transfer, list_transfers
from ..shards.group import TensorGroup
from .stage import LoadedStage

What = Literal["hidden", "sampled"]


class Pending(Protocol):
    """A message that is perhaps still on its way."""

    def wait(self) -> Tensor:
        """Wait for the message; operators of the device's stream may use it at once.

        Raises:
          StageLost: the sender is gone, or has been silent for too long.
        """


class Channel(Protocol):
    """Messages between this stage and another one, in one direction."""

    def send(self, tensor: Tensor) -> None:
        """Send a tensor; waits only if many messages are unsent.

        The tensor must not be changed afterwards.

        Raises:
          StageLost: the receiver is gone, or has been silent for too long.
        """

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> Pending:
        """Make room for the next message, of this shape and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of one stage.

    Args:
      before: from the stage before this one; None at the first stage.
      after: to the next stage; None at the last stage.
      tokens: from the last stage to the first one; None at the other stages.
      shards: the processes that share the layers of this stage; None if it is one process.
    """

    before: Channel | None = None
    after: Channel | None = None
    tokens: Channel | None = None
    shards: TensorGroup | None = None


class StageLinks:
    """A stage's part in the transfers of each plan.

    Plans come in order. One thread launches them; another thread may call `expect` ahead.

    Args:
      stage: this stage, which has its number and the shapes of its tensors.
      channels: the connections to other stages.
    """

    def __init__(self, stage: LoadedStage, channels: Channels) -> None:
        self._stage = stage
        self._channels = channels
        # Messages that are on their way to this stage, in the order of steps.
        self._expected_hidden: deque[tuple[Transfer, Pending]] = deque()
        self._expected_tokens: deque[tuple[Transfer, Pending]] = deque()
        self._last_expected: int | None = None

    @property
    def num_stages(self) -> int:
        return self._stage.partition.num_stages

    def expect(self, plan: StepPlan) -> None:
        """Make room for the hidden states of a step, as soon as its plan is known.

        Optional. On a CPU, a tensor is transferred only after it is expected. An early
        call lets it come while the step before is computed.
        """
        if self._last_expected is not None and plan.step_id <= self._last_expected:
            return
        self._last_expected = plan.step_id
        for transfer in self._list_received(plan, "hidden"):
            assert self._channels.before is not None, "a later stage has one before"
            shape = transfer.num_rows, self._stage.hidden_width
            pending = self._channels.before.expect(shape, self._stage.dtype)
            self._expected_hidden.append((transfer, pending))

    def receive_hidden(self, plan: StepPlan) -> Tensor:
        """Wait for the output of the stage before, (num_tokens, hidden_width)."""
        self.expect(plan)
        transfer, pending = self._expected_hidden.popleft()
        assert transfer.step_id == plan.step_id, "plans are launched in order"
        return pending.wait()

    def send_hidden(self, plan: StepPlan, hidden: Tensor) -> None:
        """Send the output of this stage's layers, (num_tokens, hidden_width)."""
        for transfer in self._list_sent(plan, "hidden"):
            _send(self._channels.after, transfer, hidden)

    def expect_sampled(self, plan: StepPlan) -> None:
        """Make room for the tokens that a step samples, if any."""
        for transfer in self._list_received(plan, "sampled"):
            assert self._channels.tokens is not None, "the first stage gets tokens"
            pending = self._channels.tokens.expect((transfer.num_rows,), torch.int64)
            self._expected_tokens.append((transfer, pending))

    def receive_sampled(self, step_id: int) -> Tensor:
        """Wait for the tokens that a step sampled, and for all messages before them.

        Returns:
          (num_sampled,) int64
        """
        while True:
            transfer, pending = self._expected_tokens.popleft()
            assert transfer.step_id <= step_id, "the tokens of a step are received once"
            token_ids = pending.wait()
            if transfer.step_id == step_id:
                return token_ids

    def send_sampled(self, plan: StepPlan, token_ids: Tensor | None) -> None:
        """Send the tokens of a step to the first stage.

        Args:
          token_ids: (num_sampled,) int64; None if no row samples.
        """
        for transfer in self._list_sent(plan, "sampled"):
            assert token_ids is not None, "tokens are sent only if a row samples"
            _send(self._channels.tokens, transfer, token_ids)

    def list_transfers(self, plan: StepPlan) -> tuple[Transfer, ...]:
        """Return the messages that all stages exchange for a step."""
        return list_transfers(plan, self.num_stages)

    def _list_sent(self, plan: StepPlan, what: What) -> list[Transfer]:
        stage = self._stage.partition.stage
        transfers = self.list_transfers(plan)
        return [t for t in transfers if t.sender == stage and t.what == what]

    def _list_received(self, plan: StepPlan, what: What) -> list[Transfer]:
        stage = self._stage.partition.stage
        transfers = self.list_transfers(plan)
        return [t for t in transfers if t.receiver == stage and t.what == what]


def _send(channel: Channel | None, transfer: Transfer, tensor: Tensor) -> None:
    assert channel is not None, "a stage has a channel for each of its transfers"
    assert len(tensor) == transfer.num_rows, "a step sends what its plan says"
    channel.send(tensor)
