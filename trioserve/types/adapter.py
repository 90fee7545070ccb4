"""LoRA adapters: small changes of a model's weights, which each request chooses."""

from __future__ import annotations

from dataclasses import dataclass

# The number of a request that runs the model as it is.
NO_ADAPTER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """An adapter to be loaded.

    Args:
      number: positive, and unique for the life of the engine, so that a name that is loaded
        again has another one.
      path: a folder in peft's format, or a GGUF file.
    """

    number: int
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """An adapter that is loaded.

    Args:
      number, name: as in AdapterSource.
      digest: of its content: adapters with the same digest compute the same.
      rank: the largest one of its modules.
      num_bytes: of its numbers in memory.
    """

    number: int
    name: str
    digest: bytes
    rank: int
    num_bytes: int
