"""Turns an encoder's states into results: vectors, scores of labels, similarities.

This room knows torch and the files of sentence-transformers. It does not know texts or
requests, nor how the states are computed (model/encoder/).

The door:
  check_pooling   whether options make sense for a model
  PoolingRunner   .step(PoolingPlan) -> PoolingResult, in one thread at a time
"""

from .loading import check_pooling
from .runner import PoolingRunner

__all__ = ["PoolingRunner", "check_pooling"]
