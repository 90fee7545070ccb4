"""Makes results of an encoder's states: vectors, scores of labels, similarities.

Knows torch and the files of sentence-transformers; does not know texts, requests or how
the states come about (that is model/encoding).

The door:
  PoolingRunner   .step(PoolingPlan) -> PoolingResult, from one thread at a time
"""

from .runner import PoolingRunner

__all__ = ["PoolingRunner"]
