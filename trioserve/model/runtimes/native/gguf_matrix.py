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
      columns: (num_inputs,) int64; input i of the product is number columns[i] of a row. None
        is the order of the file. Blocks cannot be packed in another one, so the numbers that
        the product reads must lie in theirs.
    """

    kind: str
    num_inputs: int
    rows: NDArray[np.uint8]
    order: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.rows if self.order is None else self.order)

    def take(self, places: NDArray[np.int64]) -> GgufMatrix:
        """Return the matrix of some outputs, in another order."""
        order = places if self.order is None else self.order[places]
        return replace(self, order=np.ascontiguousarray(order))
