"""What a stage sends and receives in a step.

    before --hidden--> [ stage ] --hidden--> after
    last stage --tokens--> first stage

What is exchanged is read from the plan (types/transfers.py), at both ends of every channel, so
sends and receives match whatever the step is. A channel keeps their order; nothing else
says which message is which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...types.plan import StepPlan
from ...types.transfers import Transfer, list_transfers
from .stage import LoadedStage

Direction = Literal["send", "receive"]
What = Literal["hidden", "sampled"]


class Pending(Protocol):
    """A message that may not have come yet."""

    def wait(self) -> Tensor:
        """Return it when it is there, on the device usable in the order of its stream.

        Raises:
          StageLost: its sender is gone, or has been silent for too long.
        """


class Channel(Protocol):
    """Messages from one stage to another one, of which this process is one."""

    def send(self, tensor: Tensor) -> None:
        """Send a tensor, which is not changed afterwards; waits only if many wait to go.

        Raises:
          StageLost: its receiver is gone, or has been silent for too long.
        """

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> Pending:
        """Make room for the next message."""


class StageLost(Exception):
    """Raised when a stage cannot go on because another one is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Those that a stage has.

    Args:
      before: from the stage before this one; the first one has none.
      after: to the stage behind it; the last one has none.
      tokens: from the last stage to the first one; the others have none.
    """

    before: Channel | None = None
    after: Channel | None = None
    tokens: Channel | None = None


class StageLinks:
    """A stage's share of each plan's exchanges.

    Plans come in order. One thread launches them; another one may call `expect` ahead.

    Args:
      stage: what the tensors are like, and which stage it is.
      channels: to and from others.
      exchanges_always: tokens go back in every step, a row of nothing where no row
        samples, and the first stage waits for those of the step before. It shows what it
        is worth that they do not.
      record: where to note what is sent and received.
    """

    def __init__(
        self,
        stage: LoadedStage,
        channels: Channels,
        *,
        exchanges_always: bool = False,
        record: list[tuple[Direction, Transfer]] | None = None,
    ) -> None:
        self.exchanges_always = exchanges_always
        self._stage = stage
        self._channels = channels
        self._record = record
        # Posted, in the order of steps.
        self._hidden: deque[tuple[Transfer, Pending]] = deque()
        self._sampled: deque[tuple[Transfer, Pending]] = deque()
        self._last_expected: int | None = None

    @property
    def num_stages(self) -> int:
        return self._stage.partition.num_stages

    def expect(self, plan: StepPlan) -> None:
        """Make room for what the stage before sends, as early as a plan is known.

        Optional: on a CPU, the tensors of a step travel only once they are expected, and
        so may travel while the step before it is computed.
        """
        if self._last_expected is not None and plan.step_id <= self._last_expected:
            return
        self._last_expected = plan.step_id
        for exchange in self._list_received(plan, "hidden"):
            assert self._channels.before is not None, "a later stage has one before"
            shape = exchange.num_rows, self._stage.hidden_width
            pending = self._channels.before.expect(shape, self._stage.dtype)
            self._hidden.append((exchange, pending))

    def receive_hidden(self, plan: StepPlan) -> Tensor:
        """Wait for what the stage before gives, (num_tokens, hidden_width)."""
        self.expect(plan)
        exchange, pending = self._hidden.popleft()
        assert exchange.step_id == plan.step_id, "plans are launched in order"
        return self._wait(exchange, pending)

    def send_hidden(self, plan: StepPlan, hidden: Tensor) -> None:
        """Hand on what the layers gave, (num_tokens, hidden_width)."""
        for exchange in self._list_sent(plan, "hidden"):
            self._send(self._channels.after, exchange, hidden)

    def expect_sampled(self, plan: StepPlan) -> None:
        """Make room for the tokens that a step samples, if any."""
        for exchange in self._list_received(plan, "sampled"):
            assert self._channels.tokens is not None, "the first stage gets tokens"
            pending = self._channels.tokens.expect((exchange.num_rows,), torch.int64)
            self._sampled.append((exchange, pending))

    def receive_sampled(self, step_id: int) -> Tensor:
        """Wait for the tokens that a step sampled, and for all sent before.

        Returns:
          (num_sampled,) int64
        """
        while True:
            exchange, pending = self._sampled.popleft()
            assert exchange.step_id <= step_id, "tokens are taken in once"
            token_ids = self._wait(exchange, pending)
            if exchange.step_id == step_id:
                return token_ids

    def receive_all_sampled(self) -> None:
        """Wait for what is still on its way; it holds no tokens."""
        while self._sampled:
            self._wait(*self._sampled.popleft())

    def send_sampled(self, plan: StepPlan, token_ids: Tensor | None) -> None:
        """Send the tokens of a step to the first stage, (num_sampled,) int64."""
        for exchange in self._list_sent(plan, "sampled"):
            if token_ids is None:
                token_ids = torch.zeros(1, dtype=torch.int64, device=self._stage.device)
            self._send(self._channels.tokens, exchange, token_ids)

    def _list_sent(self, plan: StepPlan, what: What) -> Iterator[Transfer]:
        stage = self._stage.partition.stage
        return (e for e in self._list(plan) if e.sender == stage and e.what == what)

    def _list_received(self, plan: StepPlan, what: What) -> Iterator[Transfer]:
        stage = self._stage.partition.stage
        return (e for e in self._list(plan) if e.receiver == stage and e.what == what)

    def _list(self, plan: StepPlan) -> tuple[Transfer, ...]:
        transfers = list_transfers(plan, self.num_stages)
        if not self.exchanges_always or not transfers or plan.num_sampled:
            return transfers
        forced = Transfer(
            step_id=plan.step_id,
            what="sampled",
            sender=self.num_stages - 1,
            receiver=0,
            num_rows=1,
        )
        return *transfers, forced

    def _send(
        self, channel: Channel | None, exchange: Transfer, tensor: Tensor
    ) -> None:
        assert channel is not None, "what a plan wants sent has a channel"
        assert len(tensor) == exchange.num_rows, "a step sends what its plan says"
        self._note("send", exchange)
        channel.send(tensor)

    def _wait(self, exchange: Transfer, pending: Pending) -> Tensor:
        tensor = pending.wait()
        self._note("receive", exchange)
        return tensor

    def _note(self, kind: Direction, exchange: Transfer) -> None:
        if self._record is not None:
            self._record.append((kind, exchange))
