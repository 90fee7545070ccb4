"""What a loaded encoder is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInput, PoolingTask
from ...types.sentence import PoolingMode

Activation = Literal["softmax", "sigmoid", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedInputs:
    """The last layer's states of several inputs.

    Args:
      states: (num_tokens, hidden_size) in the model's type, all inputs flat
      spans: for each input, in input order, [begin, end) of its tokens.
    """

    states: Tensor
    spans: tuple[tuple[int, int], ...]


class ForwardPass(Protocol):
    """A way to run a model."""

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEncoder:
    """A model on its device that reads whole texts; from one thread at a time.

    Args:
      info: what the other rooms know of it; its max_model_len is what one input may
        have.
      task: what it was loaded for.
      forward: how its inputs are run.
      labels: names of a classifier's, in the order of its numbers.
      activation: what turns a classifier's numbers into scores.
      hidden_size: width of the states.
      type_ids: it tells the two texts of a pair apart.
      is_causal: tokens see none that follow, as in a decoder.
      head: of a classifier: (n, hidden_size) -> (n, num_labels), to be given each
        text's state by `head_mode`, or each token's for token_classify.
      head_mode: which state of a text the head of a text classifier reads.
      projection: (num_outputs, hidden_size) what a ColBERT checkpoint multiplies states
        with.
    """

    info: ModelInfo
    task: PoolingTask
    forward: ForwardPass
    device: torch.device
    dtype: torch.dtype
    hidden_size: int
    type_ids: bool = False
    is_causal: bool = False
    labels: tuple[str, ...] = ()
    activation: Activation = "none"
    head: Callable[[Tensor], Tensor] | None = None
    head_mode: PoolingMode | None = None
    projection: Tensor | None = None

    @torch.inference_mode()
    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs:
        """Run the model over some inputs, each of which sees itself alone."""
        return self.forward.encode(inputs)
