"""Attention written out: for layers whose scores are changed before the softmax.

PyTorch's fused operators give no access to the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bridge import AttentionCall


def attend_by_scores(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    call: AttentionCall,
    sinks_shape: tuple[int, ...],
) -> Tensor:
    """Attend as transformers' eager functions do.

    Args:
      query: (..., num_queries, key_dim)
      keys: (..., num_keys, key_dim)
      values: (..., num_keys, value_dim)
      mask: added to the scores: 0 or -inf; its shape broadcasts to theirs
      call: the rules by which scores become weights.
      sinks_shape: the shape of the sinks, of one number a head, that broadcasts to the
        scores.

    Returns:
      (..., num_queries, value_dim)
    """
    scores = torch.matmul(query, keys.transpose(-1, -2)) * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores + mask
    num_keys = scores.shape[-1]
    if call.sinks is not None:
        sinks = call.sinks.view(sinks_shape).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks.to(scores.dtype)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., :num_keys]
    return torch.matmul(weights.to(values.dtype), values)
