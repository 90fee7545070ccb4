"""The forward pass over padded rectangles, for models whose attention cannot be replaced.

Inputs are sorted by length and divided into groups that need little padding. Each group
goes through transformers' own forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...types.pooling import PoolingInput
from ..attention.flat import sort_by_length
from .encoder import EncodedInputs
from .tokens import TokenRules, lay_rectangle, place_spans

# The largest number of places in a rectangle for each of its tokens; and the number of
# places below which one more call of the model costs more than the padding.
_MAX_PADDING = 1.15
_MIN_PLACES = 128

# Such models write the scores of all pairs of tokens to memory, for each head. On a CPU
# the scores should stay in the cache: 64 texts of 4 to 256 tokens took 2.6 s instead of
# 3.6. A GPU needs few large calls; its number is a guess.
_MAX_PAIRS = {"cpu": 2**17, "cuda": 2**22}


class RectanglePass:
    """Runs a model by its own forward pass.

    Unseen tokens are masked like padding. The model's own code decides what the unseen
    tokens themselves see.

    Args:
      model: has an attention implementation of transformers.
      rules: the arguments that the model needs for each token.
    """

    def __init__(self, model: PreTrainedModel, rules: TokenRules) -> None:
        self._model: Any = model
        self._rules = rules

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs:
        order = sort_by_length(inputs)
        ordered = [inputs[i] for i in order]
        lengths = [item.num_tokens for item in ordered]
        groups = _cut_groups(lengths, _MAX_PAIRS[self._rules.device.type])
        parts = [self.run_together(ordered[begin:end]) for begin, end in groups]
        return EncodedInputs(
            states=parts[0] if len(parts) == 1 else torch.cat(parts),
            spans=place_spans(inputs, order),
        )

    def run_together(self, inputs: Sequence[PoolingInput]) -> Tensor:
        """Run inputs in one rectangle, and return their states one after another."""
        arguments, is_token = lay_rectangle(inputs, self._rules)
        states: Tensor = self._model(**arguments)[0]
        return states[is_token]  # (num_tokens, hidden_size)


def _cut_groups(lengths: Sequence[int], max_pairs: int) -> Iterator[tuple[int, int]]:
    """Divide inputs into slices of about the same length.

    Args:
      lengths: rising.
      max_pairs: largest number of pairs of tokens in a slice of several inputs.
    """
    begin, num_tokens = 0, 0
    for end, length in enumerate(lengths):
        num_inputs = end + 1 - begin
        places = num_inputs * length
        is_alike = places <= max(_MAX_PADDING * (num_tokens + length), _MIN_PLACES)
        if end > begin and not (is_alike and places * length <= max_pairs):
            yield begin, end
            begin, num_tokens = end, 0
        num_tokens += length
    if lengths:
        yield begin, len(lengths)
