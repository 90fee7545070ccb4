"""The rows of one step, and their states.

A module runs once for all rows of one token behind earlier ones, and once for each other
row: their lengths differ, and a state must not see padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..device.tensors import send_ids
from ..step.layout import StepInputs
from .modules import RunRows
from .pool import StatePool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows of one length that run together.

    Args:
      tokens: (num_rows, num_tokens) int64, their flat tokens
      source, target: (num_rows,) int64, the slots that they read and write; no source if
        their sequences begin
    """

    tokens: Tensor
    source: Tensor | None
    target: Tensor


class PooledStates:
    """The StepStates of a plan's rows.

    Args:
      inputs: the step.
    """

    def __init__(self, pool: StatePool, inputs: StepInputs) -> None:
        self._pool = pool
        self._groups = list(_group_rows(pool, inputs))

    def run(self, name: str, hidden: Tensor, run_rows: RunRows) -> Tensor:
        output = torch.empty_like(hidden)
        for rows in self._groups:
            cache = _PooledCache(self._pool, name, rows)
            output[0, rows.tokens] = run_rows(hidden[0, rows.tokens], cache)
            cache.store()
        return output


def _group_rows(pool: StatePool, inputs: StepInputs) -> Iterator[_Rows]:
    device = inputs.last_token_ids.device
    ends = accumulate(row.num_tokens for row in inputs.rows)
    decodes = []
    for row, end in zip(inputs.rows, ends):
        is_held = row.slot in inputs.held
        begin, last = end - row.num_tokens, end - 1
        if row.end > 1 and (is_held or row.num_tokens == 1):
            # The last token of a held row comes again, so nothing of it may stay.
            target = pool.num_slots if is_held else row.slot
            decodes.append((last, row.slot, target))
            end = last
        if begin < end:
            yield _Rows(
                tokens=torch.arange(begin, end).to(device, non_blocking=True)[None],
                source=send_ids([row.slot], device) if row.start else None,
                target=send_ids([row.slot], device),
            )
    if decodes:
        tokens, sources, targets = (send_ids(each, device) for each in zip(*decodes))
        yield _Rows(tokens=tokens[:, None], source=sources, target=targets)


class _PooledCache:
    """The StateCache of rows that run together.

    Some modules call it with their new states, others write into the tensors that they
    have got. So it keeps copies, and stores them in the end.
    """

    def __init__(self, pool: StatePool, name: str, rows: _Rows) -> None:
        self._pool = pool
        self._name = name
        self._rows = rows
        self._convs: dict[int, Tensor] = {}
        self._recurrents: dict[int, Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        if self._rows.source is None:
            return None
        if state_idx not in self._convs:
            conv = self._pool.get_conv(self._name, state_idx)
            self._convs[state_idx] = conv.index_select(0, self._rows.source)
        return self._convs[state_idx]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        if self._rows.source is None:
            return None
        if state_idx not in self._recurrents:
            states = self._pool.get_recurrent(self._name, state_idx)
            self._recurrents[state_idx] = states.index_select(0, self._rows.source)
        return self._recurrents[state_idx]

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        before = self.get_conv_state(layer_idx, state_idx)
        if before is not None:
            conv_states = torch.cat((before, conv_states), dim=-1)
        width = self._pool.get_conv(self._name, state_idx).shape[-1]
        missing = max(0, width - conv_states.shape[-1])
        self._convs[state_idx] = pad(conv_states, (missing, 0))[..., -width:]
        return conv_states

    def update_recurrent_state(
        self,
        recurrent_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        **kwargs: Any,
    ) -> Tensor:
        self._recurrents[state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def store(self) -> None:
        """Store the states after the last tokens of the rows."""
        for copies, get in (
            (self._convs, self._pool.get_conv),
            (self._recurrents, self._pool.get_recurrent),
        ):
            for index, states in copies.items():
                kept = get(self._name, index)
                kept.index_copy_(0, self._rows.target, states.to(kept.dtype))
