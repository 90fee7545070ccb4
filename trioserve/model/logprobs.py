"""Report log probabilities the way a client sees them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..steps import TokenLogprobs

# JSON has no infinity. vLLM's server sends this number where a token cannot come.
_LOWEST_LOGPROB = -9999.0


def report_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: list[int]
) -> list[TokenLogprobs]:
    """Report the tokens that stand at some positions, and the likeliest ones.

    Args:
      logits: (num_rows, vocab_size) as the model gave them
      token_ids: (num_rows,) int64
      num_top: for each row, how many of the most likely tokens to list.
    """
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = logprobs.gather(1, token_ids[:, None])  # (num_rows, 1)
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    # At least one is taken, so that the lists below have rows.
    most = min(max(1, *num_top), logprobs.shape[1])
    top_values, top_ids = logprobs.topk(most)  # (num_rows, most)
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprob,
            rank=rank,
            top=tuple(zip(ids[:count], values[:count])),
        )
        for token_id, logprob, rank, ids, values, count in zip(
            token_ids.tolist(),
            _make_finite(chosen[:, 0]).tolist(),
            ranks.tolist(),
            top_ids.tolist(),
            _make_finite(top_values).tolist(),
            num_top,
        )
    ]


def _make_finite(logprobs: Tensor) -> Tensor:
    return logprobs.nan_to_num(nan=_LOWEST_LOGPROB, neginf=_LOWEST_LOGPROB)
