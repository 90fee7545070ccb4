"""The states of a model's layers."""

from __future__ import annotations

from dataclasses import dataclass
import math

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """A state that a module keeps for each sequence.

    Args:
      module_name: the module's name.
      index: the place of the state among the module's.
      conv: (num_channels, width) of the last inputs of its convolution; None if it has none
      recurrent: the shape of its recurrent state; None if it has none.
    """

    module_name: str
    index: int
    conv: tuple[int, ...] | None = None
    recurrent: tuple[int, ...] | None = None


def count_stateful_modules(states: tuple[StateSpec, ...]) -> int:
    """Return how many modules keep these states."""
    return len({state.module_name for state in states})


def count_state_bytes(states: tuple[StateSpec, ...], dtype: torch.dtype) -> int:
    """Return the bytes of all states of a sequence.

    Args:
      dtype: the model's, which inputs of convolutions keep. Recurrent states are float32:
        with fewer bits the errors of a long text add up.
    """
    return sum(
        (0 if state.conv is None else math.prod(state.conv)) * dtype.itemsize
        + (0 if state.recurrent is None else math.prod(state.recurrent)) * 4
        for state in states
    )
