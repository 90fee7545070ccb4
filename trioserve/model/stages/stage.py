"""One stage of a model, ready to be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.stage_place import WHOLE_LAYERS, StagePlace
from ..runtimes.loaded import LoadedModel
from .partition import Partition
from .placeholder_layers import Entrance, LeftStage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage(LoadedModel):
    """A model that has only some of its layers here.

    It may have a part of each of them (../shards/). `info` describes the whole model, except
    for kv_bytes_per_token, which counts only the heads that are here.

    Args:
      partition: which layers.
      entrance: takes the hidden states of the stage before; None at the first stage.
      hidden_width: width of the hidden states between stages.
      embedding_width: width of the model's embedding.
    """

    partition: Partition
    entrance: Entrance | None
    hidden_width: int
    embedding_width: int

    @property
    def place(self) -> StagePlace:
        """The place of this process among all that share the model."""
        group = self.tensor_group
        return StagePlace(
            stage=self.partition.stage,
            num_stages=self.partition.num_stages,
            shard=WHOLE_LAYERS if group is None else group.shard,
        )

    @property
    def begin(self) -> int:
        return self.partition.begin

    @property
    def end(self) -> int:
        return self.partition.end

    @property
    def has_all_layers(self) -> bool:
        return self.partition.num_stages == 1

    @property
    def has_head(self) -> bool:
        return self.partition.is_last

    def enter(self, vectors: Tensor) -> dict[str, Tensor]:
        """Return the arguments, besides positions, with which its layers read vectors.

        Args:
          vectors: (num_tokens, hidden_width), at a later stage those that the stage
            before has sent
        """
        if self.entrance is None or self.native is not None:
            return LoadedModel.enter(self, vectors)
        self.entrance.put(vectors[None])  # (1, num_tokens, hidden_width)
        # Only the shape matters: the hidden states replace these zeros at the entrance.
        return {
            "inputs_embeds": torch.zeros(
                (1, len(vectors), self.embedding_width),
                dtype=vectors.dtype,
                device=vectors.device,
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
        raise AssertionError("the layer after a stage's own layers ends the pass")
