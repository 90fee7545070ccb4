"""The place of a process among all that share a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The place of a process among all that share each layer of a stage.

    Args:
      index: from 0.
      count: processes that share each layer; 1 leaves layers whole.
    """

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0


WHOLE_LAYERS = Shard()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """The place of a process among all that share a model.

    The processes of the first stage come first, then the second stage's:

        rank     0                 1                 2                 3
        place    stage 0, shard 0  stage 0, shard 1  stage 1, shard 0  stage 1, shard 1

    Args:
      stage: from 0.
    """

    stage: int
    num_stages: int
    shard: Shard = WHOLE_LAYERS

    @classmethod
    def of_rank(cls, rank: int, *, num_stages: int, num_shards: int) -> StagePlace:
        stage, index = divmod(rank, num_shards)
        shard = Shard(index=index, count=num_shards)
        return cls(stage=stage, num_stages=num_stages, shard=shard)

    @property
    def rank(self) -> int:
        """The number of the process, from 0."""
        return self.stage * self.shard.count + self.shard.index

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.num_stages * self.shard.count

    @property
    def name(self) -> str:
        """The name of the process, for messages."""
        stage, shard = f"stage {self.stage}", f"shard {self.shard.index}"
        if self.shard.count == 1:
            return stage
        return shard if self.num_stages == 1 else f"{stage} {shard}"

    @property
    def samples(self) -> bool:
        """True if it is the one process that samples."""
        return self.stage == self.num_stages - 1 and self.shard.is_first
