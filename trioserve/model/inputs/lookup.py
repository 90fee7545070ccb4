"""The tokens that every layer looks up again, where images stand.

Source: Gemma4Model.forward in transformers/models/gemma4/modeling_gemma4.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..runtimes.loaded import LoadedModel
from ..step.layout import StepInputs


class TokenLookup:
    """Lets layers look up the padding token in the place of each vector.

    Args:
      decoder: transformers' module of the text part.
      finds: the modules run the layers; the kernels look up the tokens themselves.
    """

    def __init__(self, decoder: Any, padding_id: int, *, finds: bool) -> None:
        self._decoder = decoder
        self._padding_id = padding_id
        self._finds = finds

    @classmethod
    def of(cls, model: LoadedModel) -> TokenLookup | None:
        """Return the lookup of a model that takes images; None if its layers have none."""
        if model.vision is None:
            return None
        config = model.model.config.get_text_config(decoder=True)
        if not getattr(config, "hidden_size_per_layer_input", 0):
            return None
        return cls(
            model.model.get_decoder(), config.pad_token_id, finds=model.native is None
        )

    def pad(self, inputs: StepInputs, parts: Sequence[tuple[int, Tensor]]) -> None:
        """Put the padding token in the place of vectors.

        Args:
          parts: flat tokens at which vectors begin, and the vectors.
        """
        for first, vectors in parts:
            inputs.input_ids[0, first : first + len(vectors)] = self._padding_id

    def find(self, inputs: StepInputs) -> dict[str, Tensor]:
        """Return the arguments by which the modules get the vectors of these tokens."""
        if not self._finds:
            return {}
        found: Tensor = self._decoder.get_per_layer_inputs(inputs.input_ids)
        return {"per_layer_inputs": found}
