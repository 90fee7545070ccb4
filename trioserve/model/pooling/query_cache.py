"""Results that stay on the device, and what is compared with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ...types.pooling import PoolingRow, QueryKey
from .similarity import compare_matrices, compare_vectors


class QueryCache:
    """What inputs became that others are to be compared with.

    Args:
      device: where it stays.
      averages_similarity: MaxSim is divided by the number of the query's vectors.
    """

    def __init__(self, device: torch.device, *, averages_similarity: bool) -> None:
        self._device = device
        self._averages_similarity = averages_similarity
        self._kept: dict[QueryKey, Tensor] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def release(self, keys: Iterable[QueryKey]) -> None:
        """Forget results; a key's input may have been given up before it was read."""
        for key in keys:
            self._kept.pop(key, None)

    def keep(self, rows: Sequence[PoolingRow], shares: Mapping[int, Tensor]) -> None:
        """Keep the results of those rows that ask for it.

        Args:
          rows: of a step.
          shares: by the number of its row, what an input became.
        """
        for number, share in shares.items():
            key = rows[number].keep_as
            if key is not None:
                # A view would keep what the whole step made.
                self._kept[key] = share.clone()

    def compare(
        self, rows: Sequence[PoolingRow], shares: Mapping[int, Tensor]
    ) -> tuple[list[int], Tensor]:
        """Compare the results of those rows that ask for it.

        Returns:
          Numbers of the rows, and their similarities (num_rows,) on the device.
        """
        vectors: list[int] = []
        matrices: dict[QueryKey, list[int]] = {}
        for number, share in shares.items():
            key = rows[number].compare_with
            if key is not None and share.dim() == 1:
                vectors.append(number)
            elif key is not None:
                matrices.setdefault(key, []).append(number)
        parts = [torch.zeros(0, device=self._device)]
        if vectors:
            queries = [self._find(rows[number]) for number in vectors]
            documents = [shares[number] for number in vectors]
            parts.append(compare_vectors(torch.stack(queries), torch.stack(documents)))
        for key, numbers in matrices.items():
            documents = [shares[number] for number in numbers]
            parts.append(self._compare_matrices(self._kept[key], documents))
        compared = [*vectors, *(n for numbers in matrices.values() for n in numbers)]
        return compared, torch.cat(parts)

    def _find(self, row: PoolingRow) -> Tensor:
        assert row.compare_with is not None
        return self._kept[row.compare_with]

    def _compare_matrices(self, query: Tensor, documents: Sequence[Tensor]) -> Tensor:
        scores = compare_matrices(query, documents)
        return scores / max(1, len(query)) if self._averages_similarity else scores
