"""A model whose layers are spread over processes: what one of them does.

Each process is a *stage*: it has some layers, reads what the stage before it hands on,
and hands on what its own give. The first one turns tokens into vectors; the last one
samples, and tells the first one which tokens it sampled (types/transfers.py says when).

Knows torch, transformers and torch.distributed; does not know who starts the processes,
how plans come to them, nor what becomes of results.

The door:
  outline_stage   a folder -> Outline, without its weights
  load_stage      a folder -> LoadedStage: only what one stage computes is read
  partition_layers    which layers each stage has
  StageLinks      what a stage sends and receives in a step
  open_links      the same between processes
  StageEnds       what a ModelRunner begins and ends the stage's steps with
"""

from .distributed import open_links
from .ends import StageEnds
from .links import Channels, StageLinks, StageLost
from .loading import load_stage, outline_stage
from .partition import HEAD_WEIGHT, Partition, partition_layers
from .stage import LoadedStage

__all__ = [
    "HEAD_WEIGHT",
    "Channels",
    "LoadedStage",
    "Partition",
    "StageEnds",
    "StageLinks",
    "StageLost",
    "load_stage",
    "open_links",
    "outline_stage",
    "partition_layers",
]
