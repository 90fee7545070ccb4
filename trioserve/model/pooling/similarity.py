"""Compares what texts became, on the device where it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .poolers import take_largest

# Similarities of two tokens that are in memory at once. 16 Mi take 64 MiB: more of them
# were not faster on a CPU, a hundredth was as fast.
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

    The documents' tokens are put one after the other: no rectangle is padded. Where
    there are too many similarities for the memory, the query is cut.

    Args:
      query: (num_query_tokens, width).
      documents: each (num_tokens, width); one without tokens is similar to nothing: 0.
      max_scores: similarities that are in memory at once, but at least one for each
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
