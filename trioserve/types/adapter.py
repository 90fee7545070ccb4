"""LoRA adapters: small changes of a model's weights, which each request chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The number of a request that runs the model as it is.
NO_ADAPTER = 0

# The most adapters on a device. Each takes memory for as long as it is loaded, 20 MB if it has
# the rank 16 for all products of a model of a billion weights.
DEFAULT_MAX_ADAPTERS = 64


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
      unmatched: tensors for which this process has no module; another stage may have it.
    """

    number: int
    name: str
    digest: bytes
    rank: int
    num_bytes: int
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapter:
    """An adapter that requests may name.

    Args:
      path: as in AdapterSource.
    """

    path: str
    facts: AdapterFacts

    @property
    def name(self) -> str:
        return self.facts.name


# Longer than the names of hubs, and short enough for a log.
_MAX_NAME_LENGTH: Final = 128


def explain_name(name: str) -> str:
    """Return why an adapter cannot have a name; "" if it can.

    Names are shown in logs and terminals, and are parts of URLs: owner/name is taken, as hubs
    write it. No name ever becomes a path of a file.
    """
    if not 0 < len(name) <= _MAX_NAME_LENGTH:
        return f"a name has 1 to {_MAX_NAME_LENGTH} characters"
    if not name.isprintable() or name != name.strip():
        return "a name has visible characters, and no blanks around it"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "between the slashes of a name stand words, and not . or .."
    return ""
