"""The forward pass over several inputs, laid flat and never padded.

Everything but attention treats each token alone, and costs the same for each.
Only attention uses the ends of inputs (attention/flat.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...types.pooling import PoolingInput
from ..attention.backend import EncoderBackend
from ..attention.bridge import AttentionContext
from .encoder import EncodedInputs
from .tokens import TokenRules, lay_flat, place_spans


class FlatPass:
    """Runs a model over flat tokens.

    Args:
      model: its attention implementation is attention.registered.IMPLEMENTATION.
      context: the link from its modules to the attention.
      backend: computes the attention.
      rules: the arguments that the model needs for each token.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context: AttentionContext,
        backend: EncoderBackend,
        rules: TokenRules,
    ) -> None:
        self._model: Any = model
        self._context = context
        self._backend = backend
        self._rules = rules

    def encode(self, inputs: Sequence[PoolingInput]) -> EncodedInputs:
        order = self._backend.order(inputs)
        ordered = [inputs[i] for i in order]
        arguments = lay_flat(ordered, self._rules)
        with self._context.use(self._backend.begin(ordered)):
            states: Tensor = self._model(**arguments)[0]
        return EncodedInputs(states=states[0], spans=place_spans(inputs, order))
