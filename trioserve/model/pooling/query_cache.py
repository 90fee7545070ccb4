"""Results of queries that stay on the device, and comparisons with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ...types.pooling import PoolingRow, QueryKey
from .poolers import take_largest


class QueryCache:
    """The results of inputs with which other inputs are compared.

    Args:
      device: where the results stay.
      averages_similarity: MaxSim is divided by the number of the query's vectors.
    """

    def __init__(self, device: torch.device, *, averages_similarity: bool) -> None:
        self._device = device
        self._averages_similarity = averages_similarity
        self._results: dict[QueryKey, Tensor] = {}

    def __len__(self) -> int:
        return len(self._results)

    def release(self, keys: Iterable[QueryKey]) -> None:
        """Forget results; there may be none, if the input was cancelled before it was read."""
        for key in keys:
            self._results.pop(key, None)

    def keep(self, rows: Sequence[PoolingRow], shares: Mapping[int, Tensor]) -> None:
        """Keep the results of the rows with keep_as.

        Args:
          rows: all rows of a step.
          shares: number of a row -> result of its input.
        """
        for number, share in shares.items():
            key = rows[number].keep_as
            if key is not None:
                # A view would keep the results of the whole step in memory.
                self._results[key] = share.clone()

    def compare(
        self, rows: Sequence[PoolingRow], shares: Mapping[int, Tensor]
    ) -> tuple[list[int], Tensor]:
        """Compare the results of the rows with compare_with.

        Returns:
          numbers of these rows, and their similarities, (num_rows,) on the device
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
            parts.append(self._compare_matrices(self._results[key], documents))
        compared = [*vectors, *(n for numbers in matrices.values() for n in numbers)]
        return compared, torch.cat(parts)

    def _find(self, row: PoolingRow) -> Tensor:
        assert row.compare_with is not None
        return self._results[row.compare_with]

    def _compare_matrices(self, query: Tensor, documents: Sequence[Tensor]) -> Tensor:
        scores = compare_matrices(query, documents)
        return scores / max(1, len(query)) if self._averages_similarity else scores


# Similarities of pairs of tokens that are in memory at once. 16 Mi take 64 MiB. On a CPU,
# larger numbers were not faster, and a hundredth was as fast.
MAX_SCORES = 16 * 2**20


def compare_vectors(queries: Tensor, documents: Tensor) -> Tensor:
    """Compute cosines of vectors of length 1, pair by pair.

    Args:
      queries, documents: (num_pairs, width).

    Returns:
      (num_pairs,).
    """
    return (queries * documents).sum(dim=-1)


def compare_matrices(
    query: Tensor, documents: Sequence[Tensor], *, max_scores: int = MAX_SCORES
) -> Tensor:
    """Compute MaxSim of a query with several documents.

    The tokens of the documents are put one after the other, so nothing is padded. If
    there are too many similarities for the memory, the query is cut into pieces.

    Args:
      query: (num_query_tokens, width).
      documents: each (num_tokens, width); the score of one without tokens is 0.
      max_scores: similarities in memory at once; there is always room for one for each
        token of the documents.

    Returns:
      (num_documents,): for each token of the query the largest similarity with any of
      the document's, added up.

    Source: Khattab and Zaharia 2020 (ColBERT), section 3.3.
    """
    tokens = torch.cat(list(documents))  # (num_tokens, width)
    sizes = torch.tensor([len(document) for document in documents])
    owners = torch.arange(len(documents)).repeat_interleave(sizes).to(tokens.device)
    sums = tokens.new_zeros(len(documents))
    for piece in query.split(max(1, max_scores // max(1, len(tokens)))):
        scores = tokens @ piece.T  # (num_tokens, piece)
        sums += take_largest(scores, owners, len(documents)).sum(dim=-1)
    return sums
