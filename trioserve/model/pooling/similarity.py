"""Compare the vectors of texts, on their device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .poolers import take_largest

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
