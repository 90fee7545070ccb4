"""The encoder backend of PyTorch's own operators: whole inputs, without padding or cache.

    tokens | four inputs of 9 tokens | two of 12 | one of 40 | ...
             a run: sorted by length, attended to in one call

Each run is a rectangle, so it needs no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ...types.pooling import PoolingInput
from .bridge import AttentionCall
from .probe import LayerSpec

# Queries that attend within a window together. 128 was as fast as any number from 64 to
# 256, for windows of 65 and of 1024 keys. All queries of a text at once, with most keys
# masked, took eight times as long for 2048 tokens and 65 keys.
_WINDOW_QUERIES = 128


class FlatAttention:
    """An EncoderBackend for all layers that do not change their scores."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @staticmethod
    def supports(layers: tuple[LayerSpec, ...]) -> bool:
        return not any(layer.needs_scores for layer in layers)

    def order(self, rows: Sequence[PoolingInput]) -> list[int]:
        """Put inputs of the same length next to each other."""
        return sort_by_length(rows)

    def begin(self, step: Sequence[PoolingInput]) -> _FlatStep:
        return _FlatStep(_find_runs(step), self._device)


def sort_by_length(inputs: Sequence[PoolingInput]) -> list[int]:
    """Return an order in which inputs that can be run together are neighbours."""
    return sorted(
        range(len(inputs)), key=lambda i: (inputs[i].num_tokens, inputs[i].num_unseen)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Inputs of one length, neighbours in the flat tokens.

    Args:
      begin, end: their flat tokens.
      length: tokens of one input.
      num_seen: the first tokens of an input that are keys.
    """

    begin: int
    end: int
    length: int
    num_seen: int


def _find_runs(inputs: Sequence[PoolingInput]) -> list[_Run]:
    runs, end = [], 0
    for (length, num_unseen), group in groupby(
        inputs, key=lambda item: (item.num_tokens, item.num_unseen)
    ):
        begin, end = end, end + length * sum(1 for _ in group)
        runs.append(
            _Run(begin=begin, end=end, length=length, num_seen=length - num_unseen)
        )
    return runs


class _FlatStep:
    """Attention of one pass.

    Runs of almost the same length are not padded into one run: the copies cost more than
    the calls. For 32 inputs of 4 to 64 tokens with 12 heads, 26 runs took 3.5 ms, 13 runs
    padded by 5 % took 4.6, and one rectangle took 11.5.
    """

    def __init__(self, runs: list[_Run], device: torch.device) -> None:
        self._runs = runs
        self._device = device
        # Layers alternate between a few windows; the lengths stay the same.
        self._masks: dict[tuple[object, ...], Tensor] = {}

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        parts = [self._attend_run(query, key, value, run, call) for run in self._runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_run(
        self, query: Tensor, key: Tensor, value: Tensor, run: _Run, call: AttentionCall
    ) -> Tensor:
        queries = _view_run(query, run)
        keys = _view_run(key, run)[:, :, : run.num_seen]
        values = _view_run(value, run)[:, :, : run.num_seen]
        if call.window is not None and call.window < run.length:
            output = self._attend_windows(queries, keys, values, call)
        else:
            output = _attend(queries, keys, values, call)
        return output.transpose(1, 2).flatten(0, 1)  # (num_tokens, num_heads, dim)

    def _attend_windows(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall
    ) -> Tensor:
        """Attend by blocks of queries; each block reads the keys that any of it sees."""
        assert call.window is not None
        reach = call.window - 1
        parts = []
        for begin in range(0, query.shape[2], _WINDOW_QUERIES):
            block = query[:, :, begin : begin + _WINDOW_QUERIES]
            end = begin + block.shape[2]
            last = min(key.shape[2], end if call.is_causal else end + reach)
            first = min(max(0, begin - reach), last)
            mask = self._find_mask(block.shape[2], last - first, begin - first, call)
            parts.append(
                _attend(
                    block, key[:, :, first:last], value[:, :, first:last], call, mask
                )
            )
        return torch.cat(parts, dim=2)

    def _find_mask(
        self, num_queries: int, num_keys: int, offset: int, call: AttentionCall
    ) -> Tensor:
        """Return the keys that each query sees, (num_queries, num_keys) bool.

        Args:
          offset: the position of the first query, counted from the first key.
        """
        name = num_queries, num_keys, offset, call.window, call.is_causal
        if name not in self._masks:
            assert call.window is not None
            queries = torch.arange(offset, offset + num_queries, device=self._device)
            distance = queries[:, None] - torch.arange(num_keys, device=self._device)
            if not call.is_causal:
                distance = distance.abs()
            # As in flash attention, and in transformers' sliding_window_overlay.
            self._masks[name] = (distance >= 0) & (distance < call.window)
        return self._masks[name]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
    mask: Tensor | None = None,
) -> Tensor:
    output: Tensor = scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        # Some of the last tokens may not be keys. The first key is always the first
        # query's.
        is_causal=call.is_causal and mask is None,
        scale=call.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output


def _view_run(flat: Tensor, run: _Run) -> Tensor:
    part: Tensor = flat[run.begin : run.end].unflatten(0, (-1, run.length))
    return part.transpose(1, 2)  # (num_inputs, num_heads, length, dim)
