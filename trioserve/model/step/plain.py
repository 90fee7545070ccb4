"""Rows that sample in the plainest way, so that a captured step can choose their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# SETTINGS of kernels/triton/draw.py, which needs triton.
NUM_SETTINGS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows whose next tokens depend on their logits and a few numbers alone.

    Attributes:
      temperatures: (num_rows,) float32; 0 takes the likeliest token
      keys: (num_rows,) int64, of the noise; 0 for greedy rows
      settings: (num_rows, NUM_SETTINGS) float64, in the order of kernels/triton/draw.py; None if
        the temperatures alone decide
    """

    temperatures: NDArray[np.float32]
    keys: NDArray[np.int64]
    settings: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """The next tokens of a step's rows, chosen together with the layers' work.

    Attributes:
      token_ids: (num_rows,) int64, on the device, where the next step overwrites them; the
        slots keep them already
    """

    token_ids: Tensor


# (num_wanted, vocab_size) logits, or hidden states, or the tokens.
StepOutput = Tensor | ChosenTokens
