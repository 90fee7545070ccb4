"""Makes results of an encoder's states: vectors, scores of labels, similarities.

Knows torch and the files of sentence-transformers; does not know texts, requests or how
the states come about (that is model/encoding).

The door:
  check_pooling   whether options make sense for a model
  PoolingRunner   .step(PoolingPlan) -> PoolingResult, from one thread at a time
"""

from .loading import check_pooling
from .runner import PoolingRunner

__all__ = ["PoolingRunner", "check_pooling"]
