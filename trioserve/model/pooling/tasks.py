"""The tasks of pooling models: each turns the states of the last layer into results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...types.pooling import PoolingParams
from ...types.sentence import PoolingMode
from ..encoder.encoder import Activation
from .modules import ModuleChain, bring_to_length_1
from .poolers import pool
from .tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledBatch:
    """The results of some inputs.

    Args:
      values: float32: (num_inputs, width), (num_inputs,), or (num_tokens, width) for the
        tokens of all inputs, one input after the other.
      sizes: number of rows of each input; None if each has one.
    """

    values: Tensor
    sizes: tuple[int, ...] | None = None

    def split(self) -> list[Tensor]:
        """Return a view of each input's result, (width,) or (num_tokens, width)."""
        if self.sizes is None:
            return list(self.values.unbind())
        return list(self.values.split(list(self.sizes)))


class Task(Protocol):
    """Turns states into results."""

    def __call__(
        self, states: Tensor, tokens: Tokens, params: PoolingParams
    ) -> PooledBatch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Postprocess:
    """Cuts vectors and brings them to length 1.

    Args:
      normalizes: bring vectors to length 1 unless a request says otherwise.
      truncate_dim: the size to which vectors are cut unless a request names one.
    """

    normalizes: bool
    truncate_dim: int | None = None

    def __call__(self, vectors: Tensor, params: PoolingParams) -> Tensor:
        if params.dimensions is None and params.use_activation is None:
            # As in sentence-transformers, a cut vector is not normalised again.
            finished = bring_to_length_1(vectors) if self.normalizes else vectors
            return finished[:, : self.truncate_dim]
        cut = vectors[:, : params.dimensions or self.truncate_dim]
        wanted = params.use_activation
        normalizes = self.normalizes if wanted is None else wanted
        return bring_to_length_1(cut) if normalizes else cut


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTexts:
    """A vector for each text."""

    modes: tuple[PoolingMode, ...]
    modules: ModuleChain
    finish: Postprocess

    def __call__(
        self, states: Tensor, tokens: Tokens, params: PoolingParams
    ) -> PooledBatch:
        vectors = self.modules(pool(states, tokens, self.modes))
        return PooledBatch(values=self.finish(vectors, params))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTokens:
    """A vector for each token."""

    modules: ModuleChain
    finish: Postprocess

    def __call__(
        self, states: Tensor, tokens: Tokens, params: PoolingParams
    ) -> PooledBatch:
        vectors = self.modules(tokens.select(states).float())
        return PooledBatch(
            values=self.finish(vectors, params), sizes=tuple(tokens.sizes.tolist())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTexts:
    """A number for each label of a text.

    Args:
      head: reads vectors in the model's type.
      mode: pools the tokens into the vector that the head reads.
    """

    head: Callable[[Tensor], Tensor]
    mode: PoolingMode
    activation: Activation

    def __call__(
        self, states: Tensor, tokens: Tokens, params: PoolingParams
    ) -> PooledBatch:
        pooled = pool(states, tokens, (self.mode,)).to(states.dtype)
        return PooledBatch(values=_activate(self.head(pooled), self.activation, params))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTokens:
    """A number for each token and label."""

    head: Callable[[Tensor], Tensor]
    activation: Activation

    def __call__(
        self, states: Tensor, tokens: Tokens, params: PoolingParams
    ) -> PooledBatch:
        logits = self.head(tokens.select(states))  # (num_tokens, num_labels)
        return PooledBatch(
            values=_activate(logits, self.activation, params),
            sizes=tuple(tokens.sizes.tolist()),
        )


def _activate(logits: Tensor, activation: Activation, params: PoolingParams) -> Tensor:
    scores = logits.float()
    if activation == "none" or params.use_activation is False:
        return scores
    return torch.softmax(scores, -1) if activation == "softmax" else scores.sigmoid()
