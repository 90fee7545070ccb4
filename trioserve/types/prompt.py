"""Prompts: token ids, and the vectors that stand among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidParameter
from .tensors import TensorBytes

# Stands in `Prompt.token_ids` where a vector that came from outside has no token.
NO_TOKEN = -1

# Bytes of a vector's key: enough that nobody finds two vectors with the same one.
KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInput:
    """Positions of a prompt at which the model reads vectors instead of tokens.

    Args:
      kind: "embeds" came as vectors; "image" the model's own encoder will make so.
      runs: (begin, end) positions, rising; the vectors fill them in order.
      keys: KEY_BYTES for each vector. The prefix cache takes two prompts for the same up
        to a position if all tokens and keys up to it are; so neighbours may share the
        key of all of them together, as all vectors of an image do.
      tensors: for "embeds" one, `embeds`, (num_vectors, hidden_size) in the model's
        own type; for "image" what the model's image processor made, by name.
    """

    kind: Literal["embeds", "image"]
    runs: tuple[tuple[int, int], ...]
    keys: bytes
    tensors: Mapping[str, TensorBytes]

    @property
    def num_vectors(self) -> int:
        return sum(end - begin for begin, end in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads before it writes.

    Args:
      token_ids: at least one id, each below the model's vocabulary size, or NO_TOKEN
        at positions of embedded inputs of the kind "embeds".
      text: what the ids say, where it is known; the engine never reads it.
      cache_salt: prompts share prefix-cache blocks only under the same salt.
      embedded: in the order of positions, which do not overlap.
    """

    token_ids: tuple[int, ...]
    text: str | None = None
    cache_salt: str = ""
    embedded: tuple[EmbeddedInput, ...] = ()

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise InvalidParameter("prompt", "must not be empty")
