"""The states of all slots, in the device's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...types.plan import SlotStart, StepRow
from ..attention.kv_cache import make_zeros
from ..device.tensors import send_ids
from .spec import StateSpec


class StateCopies:
    """Copies of the states of slots, beside them.

    Args:
      states: a place for each slot, and one for each copy, is its first dimension.
      first: the place of the first copy.
    """

    def __init__(self, states: Sequence[Tensor], first: int) -> None:
        self._states = states
        self._first = first

    def save(self, rows: Iterable[StepRow]) -> None:
        """Make the copies that a step's rows name, once they are computed."""
        self._copy(
            (row.slot, self._first + row.saves) for row in rows if row.saves is not None
        )

    def restore(self, starts: Iterable[SlotStart]) -> None:
        """Give slots the copies with which their sequences go on."""
        self._copy(
            (self._first + start.restores, start.slot)
            for start in starts
            if start.restores is not None
        )

    def _copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy the states of the first place of each pair to the second one."""
        if not (pairs := list(pairs)):
            return
        sources, targets = zip(*pairs)
        for states in self._states:
            source = states.index_select(0, send_ids(sources, states.device))
            states.index_copy_(0, send_ids(targets, states.device), source)


class StatePool:
    """The states of the slots of a ModelRunner.

    A slot is not cleared when its sequence leaves: a row that begins at position 0 reads
    no state, whoever had the slot before. One slot more belongs to nobody: rows that must
    not change their state write there. Copies follow.

    Args:
      num_checkpoints: copies of states.
      dtype: the model's.

    Attributes:
      copies: the copies of states.
    """

    def __init__(
        self,
        states: Sequence[StateSpec],
        *,
        num_slots: int,
        num_checkpoints: int = 0,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self._convs: dict[tuple[str, int], Tensor] = {}
        self._recurrents: dict[tuple[str, int], Tensor] = {}
        num_places = num_slots + 1 + num_checkpoints
        for state in states:
            key = state.module_name, state.index
            if state.conv is not None:
                shape = num_places, *state.conv
                self._convs[key] = make_zeros(shape, dtype, device)
            if state.recurrent is not None:
                shape = num_places, *state.recurrent
                self._recurrents[key] = make_zeros(shape, torch.float32, device)
        self.copies = StateCopies(
            [*self._convs.values(), *self._recurrents.values()], first=num_slots + 1
        )

    def get_conv(self, module_name: str, index: int) -> Tensor:
        """Return the last inputs of a convolution.

        Returns:
          (num_places, num_channels, width), of the model's type
        """
        return self._convs[module_name, index]

    def get_recurrent(self, module_name: str, index: int) -> Tensor:
        """Return a recurrent state, (num_places, *shape) float32."""
        return self._recurrents[module_name, index]
