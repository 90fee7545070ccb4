"""A loaded encoder."""

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
      spans: for each input, in the order of inputs, [begin, end) of its tokens.
    """

    states: Tensor
    spans: tuple[tuple[int, int], ...]


class ForwardPass(Protocol):
    """A way to run a model."""

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEncoder:
    """A model on its device that reads whole texts; only one thread at a time may use it.

    Args:
      info: its description for other rooms; max_model_len is the limit of one input.
      task: the task that it was loaded for.
      forward: the way to run it.
      labels: names of a classifier's labels, in the order of its outputs.
      activation: turns a classifier's outputs into scores.
      hidden_size: width of the states.
      type_ids: the model distinguishes the two texts of a pair.
      is_causal: tokens see no later tokens, as in a decoder.
      head: the head of a classifier: (n, hidden_size) -> (n, num_labels). It reads one
        state of each text, by `head_mode`, or for token_classify all states.
      head_mode: the state of a text that the head of a text classifier reads.
      projection: (num_outputs, hidden_size) the matrix of a ColBERT checkpoint, by which
        states are multiplied
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
        """Run the model over some inputs; no input sees another."""
        return self.forward.encode(inputs)
