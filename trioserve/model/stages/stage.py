"""One stage of a model, ready to be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..loading.loaded import LoadedModel
from .partition import Partition
from .placeholder_layers import Entrance, LeftStage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage(LoadedModel):
    """A model of which only some layers are here.

    `info` is that of the whole model, but for kv_bytes_per_token: what the layers keep
    that are here.

    Args:
      partition: which layers.
      entrance: takes what the stage before sends; None at the first stage.
      hidden_width: of what stages hand on.
      embedding_width: of what the model's embedding gives.
    """

    partition: Partition
    entrance: Entrance | None
    hidden_width: int
    embedding_width: int

    def enter(self, hidden: Tensor) -> dict[str, Tensor]:
        """Prepare a forward pass of a later stage.

        Args:
          hidden: (num_tokens, hidden_width), from the stage before

        Returns:
          what the model gets in place of tokens, because it wants something
        """
        assert self.entrance is not None, "the first stage reads tokens"
        self.entrance.put(hidden[None])  # (1, num_tokens, hidden_width)
        # Only its shape is looked at: it ends where the hidden states are put in.
        return {
            "inputs_embeds": torch.zeros(
                (1, len(hidden), self.embedding_width),
                dtype=hidden.dtype,
                device=hidden.device,
            )
        }

    def compute(self, arguments: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
        """Run this stage's layers.

        Returns:
          the logits of `tokens` at the last stage; (num_tokens, hidden_width) elsewhere,
          the hidden states that the next stage reads
        """
        if self.partition.is_last:
            return LoadedModel.compute(self, arguments, tokens)
        try:
            self.model(**arguments, use_cache=False)
        except LeftStage as left:
            return left.hidden[0]
        raise AssertionError("the layers behind a stage's own end the pass")
