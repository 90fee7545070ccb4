"""The exchanges of a process with the others that share its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...types.stage_place import Shard
from .split import split_evenly


class StageLost(Exception):
    """Raised when a process cannot go on, because another one of its model is gone."""


class Collectives(Protocol):
    """Exchanges that all processes of a group make at the same time, in the same order."""

    def wait_for_all(self) -> None:
        """Wait until all processes call this, however long they take.

        Raises:
          StageLost: a process is gone.
        """

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum of all processes' tensors.

        All processes get the same bits.

        Raises:
          StageLost: a process is gone, or has been silent for too long.
        """

    def gather(self, tensor: Tensor) -> Sequence[Tensor]:
        """Return the tensors of all processes, which have the same shape, in order.

        Raises:
          StageLost
        """

    def broadcast(self, tensor: Tensor) -> None:
        """Replace a tensor by the first process's.

        Raises:
          StageLost
        """


class TensorGroup:
    """A process's part in the exchanges of its group.

    Before `connect`, a sum is this process's part alone, and so are logits.

    Args:
      shard: the place of this process.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._collectives: Collectives | None = None
        self._summed: set[nn.Module] = set()

    def connect(self, collectives: Collectives) -> None:
        """Exchange with the other processes from now on."""
        self._collectives = collectives

    def wait_for_all(self) -> None:
        """Wait until all processes have read their weights."""
        if self._collectives is not None:
            self._collectives.wait_for_all()

    def sum(self, tensor: Tensor) -> None:
        """Add up the parts of all processes, in place."""
        if self._collectives is not None:
            self._collectives.sum(tensor)

    def join_logits(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Join the logits of all processes.

        Args:
          logits: (..., tokens of this process's part of the vocabulary)

        Returns:
          (..., vocab_size)
        """
        if self._collectives is None:
            return logits
        sizes = [
            len(split_evenly(vocab_size, Shard(index=i, count=self.shard.count)))
            for i in range(self.shard.count)
        ]
        missing = max(sizes) - logits.shape[-1]
        # All parts of an exchange have the same size.
        padded = nn.functional.pad(logits, (0, missing)) if missing else logits
        parts = self._collectives.gather(padded.contiguous())
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes)], dim=-1)

    def broadcast(self, tensor: Tensor) -> None:
        """Replace a tensor by the first process's."""
        if self._collectives is not None:
            self._collectives.broadcast(tensor)

    def agree(self, is_wanted: bool, device: torch.device) -> bool:
        """True if all processes want something that they must do together; waits for all.

        Args:
          device: of the tensors that they exchange.
        """
        num_against = torch.tensor([0.0 if is_wanted else 1.0], device=device)
        self.sum(num_against)
        return float(num_against) == 0

    def sum_output(self, module: nn.Module) -> None:
        """Let the outputs of a module be summed from now on."""

        def add_up(module: nn.Module, inputs: object, output: Tensor) -> None:
            self.sum(output)

        module.register_forward_hook(add_up)
        self._summed.add(module)

    def sums(self, module: nn.Module) -> bool:
        """Return whether the outputs of a module are summed."""
        return module in self._summed
