"""The states of all slots, in the device's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.kv_cache import make_zeros
from .spec import StateSpec


class StatePool:
    """The states of the slots of a ModelRunner.

    A slot is not cleared when its sequence leaves: a row that begins at position 0 reads
    no state, whoever had the slot before. One slot more belongs to nobody: rows that must
    not change their state write there.

    Args:
      dtype: the model's.
    """

    def __init__(
        self,
        states: Sequence[StateSpec],
        *,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_slots = num_slots
        self._convs: dict[tuple[str, int], Tensor] = {}
        self._recurrents: dict[tuple[str, int], Tensor] = {}
        for state in states:
            key = state.module_name, state.index
            if state.conv is not None:
                shape = num_slots + 1, *state.conv
                self._convs[key] = make_zeros(shape, dtype, device)
            if state.recurrent is not None:
                shape = num_slots + 1, *state.recurrent
                self._recurrents[key] = make_zeros(shape, torch.float32, device)

    def get_conv(self, module_name: str, index: int) -> Tensor:
        """Return the last inputs of a convolution.

        Returns:
          (num_slots + 1, num_channels, width), of the model's type
        """
        return self._convs[module_name, index]

    def get_recurrent(self, module_name: str, index: int) -> Tensor:
        """Return a recurrent state, (num_slots + 1, *shape) float32."""
        return self._recurrents[module_name, index]
