"""The log probabilities that clients see."""

from __future__ import annotations

import torch
from torch import Tensor

from ...types.output import TokenLogprobs
from .host_copy import HostCopy
from .scans import Scans

# JSON has no infinity. vLLM's server sends this number for an impossible token.
_LOWEST_LOGPROB = -9999.0


class LogprobReports:
    """The log probabilities of the tokens at some positions, and of the likeliest tokens.

    The numbers may still be on the device.

    Args:
      logits: (num_rows, vocab_size), the model's raw output
      token_ids: (num_rows,) int64
      num_top: for each row, how many of the most likely tokens to list.
    """

    def __init__(
        self, logits: Tensor, token_ids: Tensor, num_top: list[int], scans: Scans
    ) -> None:
        logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        chosen = logprobs.gather(1, token_ids[:, None])  # (num_rows, 1)
        ranks = (logprobs > chosen).sum(dim=-1) + 1
        # At least one, so that the lists have rows.
        most = min(max(1, *num_top), logprobs.shape[1])
        top_values, top_ids = scans.find_top(logprobs, most)  # (num_rows, most)
        self._num_top = num_top
        self._ids = HostCopy(token_ids)
        self._values = HostCopy(_make_finite(chosen[:, 0]))
        self._ranks = HostCopy(ranks)
        self._top_ids = HostCopy(top_ids)
        self._top_values = HostCopy(_make_finite(top_values))

    def read(self) -> tuple[TokenLogprobs, ...]:
        """Wait for the numbers; returns one report for each row."""
        return tuple(
            TokenLogprobs(
                token_id=token_id,
                logprob=logprob,
                rank=rank,
                top=tuple(zip(ids[:count], values[:count])),
            )
            for token_id, logprob, rank, ids, values, count in zip(
                self._ids.read().tolist(),
                self._values.read().tolist(),
                self._ranks.read().tolist(),
                self._top_ids.read().tolist(),
                self._top_values.read().tolist(),
                self._num_top,
            )
        )


def _make_finite(logprobs: Tensor) -> Tensor:
    return logprobs.nan_to_num(nan=_LOWEST_LOGPROB, neginf=_LOWEST_LOGPROB)
