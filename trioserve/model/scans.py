"""What sampling finds by looking at the logits of a whole vocabulary.

Everything else that it does is done to a few numbers of each row. The native kernels have
the same scans (native/scans.py), and run them for the models that they run.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad


class Scans(Protocol):
    """Scans of logits, (num_rows, vocab_size); NaN counts as the largest number."""

    def find_best(self, logits: Tensor) -> Tensor:
        """Return the likeliest tokens, (num_rows,) int64."""

    def find_top(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Find the largest logits, the largest first.

        Args:
          logits: float32
          count: at most vocab_size.

        Returns:
          (num_rows, count) float32, the logits
          (num_rows, count) int64, their tokens; which of equal logits come first, and are
            among them, may differ between scans
        """

    def sum_weights(self, logits: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
        """Sum up the weights of tokens, e to the power of each logit less the largest.

        Args:
          logits: float32

        Returns:
          (num_rows, 1) float32, the largest logits
          (num_rows, num_groups) float64, the sums of each group_size tokens; anything
            in rows with NaN, with positive infinity, or without a finite number
        """


class TorchScans:
    """The Scans of any device."""

    def find_best(self, logits: Tensor) -> Tensor:
        # On a CPU, in bfloat16, this takes a quarter of the time of argmax.
        return logits.max(dim=-1).indices

    def find_top(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, token_ids = logits.topk(count)
        return values, token_ids

    def sum_weights(self, logits: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
        largest = logits.amax(dim=-1, keepdim=True)
        weights = (logits - largest).exp_()
        weights = pad(weights, (0, -logits.shape[1] % group_size))
        groups = weights.unflatten(1, (-1, group_size))  # (num_rows, num_groups, size)
        return largest, groups.sum(dim=-1).double()
