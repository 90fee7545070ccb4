"""A matrix of a GGUF file, as it lies in the file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMatrix:
    """The weights of one product, in the blocks of a GGUF file.

    Args:
      kind: ggml's name of the type, such as Q4_1 or F16.
      rows: (num_outputs, bytes of a row) uint8, usually a view of the mapped file
      order: (num_outputs,) int64; row i of the product is rows[order[i]]. None is the
        order of the file.
    """

    kind: str
    num_inputs: int
    rows: NDArray[np.uint8]
    order: NDArray[np.int64] | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.rows if self.order is None else self.order)

    def split(self, count: int) -> list[GgufMatrix]:
        """Return `count` matrices of equal size, whose outputs follow each other."""
        if self.order is None:
            parts = np.split(self.rows, count)
            return [replace(self, rows=part) for part in parts]
        orders = np.split(self.order, count)
        return [replace(self, order=np.ascontiguousarray(part)) for part in orders]
