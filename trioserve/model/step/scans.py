"""The scans of the logits of a whole vocabulary for sampling.

All other work of sampling is done to a few numbers of each row. The native kernels have
the same scans (native/scans.py), and run them for the models that they run.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

# On a CPU, the noise of this many tokens is computed at a time, so the numbers stay in the CPU
# cache. For 64 rows of 262,144 tokens it takes a third of the time.
_NUM_NUMBERS = 2**16


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

    def race(
        self, logits: Tensor, keys: Tensor, token_ids: Tensor | None = None
    ) -> Tensor:
        """Draw from the softmax of each row.

        Each token has noise that its row's key and its id determine, and the largest sum of
        logit and noise wins. A logit that changes a little seldom changes the winner. The
        noise has the standard Gumbel distribution, so the winners are distributed as the softmax.

        Args:
          logits: float32; a token with -inf does not win beside others.
          keys: (num_rows,) int64
          token_ids: (num_rows, vocab_size) int64; None if they are the places.

        Returns:
          (num_rows,) int64, the places of the winners

        Source: Maddison et al. 2014 (A* Sampling), section 2.
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

    def race(
        self, logits: Tensor, keys: Tensor, token_ids: Tensor | None = None
    ) -> Tensor:
        num_rows, vocab_size = logits.shape
        if token_ids is None:
            token_ids = torch.arange(vocab_size, device=logits.device)[None]
        if logits.device.type == "cpu":
            num_rows = max(1, _NUM_NUMBERS // vocab_size)
        keys, token_ids = keys[:, None], token_ids.int().expand_as(logits)
        parts = zip(*(each.split(num_rows) for each in (logits, keys, token_ids)))
        places = [
            make_noise(own, ids).add_(part).max(dim=-1).indices
            for part, own, ids in parts
        ]
        return torch.cat(places)


def make_noise(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Return noise that a key and a token determine, float32.

    The native and Triton kernels have the same bits (native/logits.h, triton/draw.py).

    Args:
      keys: int64
      token_ids: of a shape that goes together with theirs
    """
    # Products of int32 wrap around.
    bits = token_ids.int() ^ keys.int()
    bits ^= _shift(bits, 16)
    bits *= 0x21F0AAAD
    bits ^= (keys >> 32).int()
    bits ^= _shift(bits, 15)
    bits *= 0xD35A2D97 - 2**32
    bits ^= _shift(bits, 15)
    uniform = _shift(bits, 1).float().add_(0.5).mul_(2.0**-31)
    # A number next to 1 is rounded to 1.
    uniform.clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shift to the right, with zeros from the left."""
    return (bits >> count).bitwise_and_((1 << (32 - count)) - 1)
