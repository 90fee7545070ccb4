"""Prompts: token ids, and vectors in the place of some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidParameter
from .tensors import TensorBytes

# The id in `Prompt.token_ids` of a position whose vector the client sent.
NO_TOKEN = -1

# Bytes of a vector's key: enough that two vectors with the same key cannot be found.
KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInput:
    """Positions of a prompt at which the model reads vectors instead of tokens.

    Args:
      kind: the client sent the vectors ("embeds"), or the model's encoder makes them
        from an image ("image").
      runs: (begin, end) positions, rising; the vectors fill them in order.
      keys: KEY_BYTES for each vector. For the prefix cache two prompts are equal up to a
        position if all tokens and keys up to it are equal. So neighbours may share one
        key for all of them together, as the vectors of an image do.
      tensors: for "embeds" one tensor, `embeds`, (num_vectors, hidden_size) in the model's
        own type; for "image" the outputs of the model's image processor, by name.
    """

    kind: Literal["embeds", "image"]
    runs: tuple[tuple[int, int], ...]
    keys: bytes
    tensors: Mapping[str, TensorBytes]

    @property
    def num_vectors(self) -> int:
        return sum(end - begin for begin, end in self.runs)


def list_image_runs(embedded: Iterable[EmbeddedInput]) -> tuple[tuple[int, int], ...]:
    """Return the (begin, end) positions of the parts of all images, rising."""
    return tuple(run for item in embedded if item.kind == "image" for run in item.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The input of a model that generates.

    Args:
      token_ids: at least one id, each below the model's vocabulary size, or NO_TOKEN
        at positions of embedded inputs of the kind "embeds".
      text: the text of the ids, if it is known; the engine never reads it.
      cache_salt: prompts share prefix-cache blocks only under the same salt.
      embedded: inputs in the order of their positions, which do not overlap.
    """

    token_ids: tuple[int, ...]
    text: str | None = None
    cache_salt: str = ""
    embedded: tuple[EmbeddedInput, ...] = ()

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise InvalidParameter("prompt", "must not be empty")


def count_tokens(prompts: Iterable[Prompt]) -> int:
    """Return the number of tokens of prompts together."""
    return sum([len(prompt.token_ids) for prompt in prompts])
