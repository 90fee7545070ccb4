"""One stage of a model whose layers are spread over processes.

Each process is a *stage*: it has some of the layers, receives the hidden states of the
stage before it, and sends its own to the next stage. The first stage turns tokens into
vectors. The last stage samples, and sends the sampled tokens to the first one
(types/transfers.py says when).

This room knows torch, torch.distributed, and transformers where a model needs it. It does
not know how processes are started, how plans reach them, or who uses the results.

The door:
  outline_plain_stage a folder -> Outline, if its model needs no transformers
  load_plain_stage    a folder -> LoadedStage, if its model needs none
  outline_stage   a folder -> Outline, without its weights
  load_stage      a folder -> LoadedStage; reads only the weights of this stage
  partition_layers    which layers each stage has
  StageLinks      the messages that a stage sends and receives in a step
  open_channels   channels between processes
  StageEnds       makes a ModelRunner receive and send, where it is not at an end
"""

from typing import TYPE_CHECKING

from ..shards.group import StageLost
from .distributed import open_channels
from .links import Channels, StageLinks
from .partition import HEAD_WEIGHT, Partition, partition_layers
from .plain import load_plain_stage, outline_plain_stage
from .stage import LoadedStage
from .stage_ends import StageEnds

if TYPE_CHECKING:
    from .loading import load_stage, outline_stage

__all__ = [
    "HEAD_WEIGHT",
    "Channels",
    "LoadedStage",
    "Partition",
    "StageEnds",
    "StageLinks",
    "StageLost",
    "load_plain_stage",
    "load_stage",
    "open_channels",
    "outline_plain_stage",
    "outline_stage",
    "partition_layers",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # They need transformers, which takes seconds to import.
        if name not in ("load_stage", "outline_stage"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import loading

        return getattr(loading, name)
