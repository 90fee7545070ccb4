"""The tokens of a step that count for each input's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ...types.pooling import PoolingInput

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of some inputs, without the tokens that are left out.

    Args:
      rows      (num_tokens,)  rows of the step's states, input after input
      owners    (num_tokens,)  number of the input that a token belongs to
      places    (num_tokens,)  its position in the input, counting tokens left out
      sizes     (num_inputs,)  tokens of each input
      begins    (num_inputs,)  row of each input's first token, even if it is left out
      device: the device of the states.
    """

    rows: Indices
    owners: Indices
    places: Indices
    sizes: Indices
    begins: Indices
    device: torch.device

    @property
    def num_inputs(self) -> int:
        return len(self.sizes)

    @cached_property
    def ends(self) -> Indices:
        """The end of each input's tokens in `rows`."""
        return np.cumsum(self.sizes)

    def select(self, states: Tensor) -> Tensor:
        """Take the tokens out of a step's states, in the order of `rows`."""
        is_whole = len(self.rows) == len(states)
        if is_whole and np.array_equal(self.rows, np.arange(len(states))):
            return states
        return states.index_select(0, self.move(self.rows))

    def move(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def find_tokens(
    inputs: Sequence[PoolingInput],
    spans: Sequence[tuple[int, int]],
    device: torch.device,
) -> Tokens:
    """Find the tokens of inputs in the states of a step.

    It uses arrays instead of loops, because a step may have hundreds of short inputs.

    Args:
      spans: [begin, end) of each input's states.
    """
    bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
    begins, sizes = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    firsts = np.cumsum(sizes) - sizes
    owners = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(len(owners)) - firsts[owners]
    kept = _find_kept(inputs, firsts, len(owners))
    if kept is not None:
        owners, places = owners[kept], places[kept]
        sizes = np.bincount(owners, minlength=len(sizes))
    return Tokens(
        rows=begins[owners] + places,
        owners=owners,
        places=places,
        sizes=sizes,
        begins=begins,
        device=device,
    )


def _find_kept(
    inputs: Sequence[PoolingInput], firsts: Indices, num_tokens: int
) -> NDArray[np.bool_] | None:
    left_out = [
        first + position
        for input, first in zip(inputs, firsts.tolist())
        for position in input.left_out
    ]
    if not left_out:
        return None
    kept = np.ones(num_tokens, dtype=np.bool_)
    kept[left_out] = False
    return kept
