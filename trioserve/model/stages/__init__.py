"""One stage of a model whose layers are spread over processes.

Each process is a *stage*: it has some of the layers, receives the hidden states of the
stage before it, and sends its own to the next stage. The first stage turns tokens into
vectors. The last stage samples, and sends the sampled tokens to the first one
(types/transfers.py says when).

This room knows torch, transformers and torch.distributed. It does not know how processes
are started, how plans reach them, or who uses the results.

The door:
  outline_stage   a folder -> Outline, without its weights
  load_stage      a folder -> LoadedStage; reads only the weights of this stage
  partition_layers    which layers each stage has
  StageLinks      the messages that a stage sends and receives in a step
  open_channels   channels between processes
  StageEnds       makes a ModelRunner receive and send, where it is not at an end
"""

from .distributed import open_channels
from .links import Channels, StageLinks, StageLost
from .loading import load_stage, outline_stage
from .partition import HEAD_WEIGHT, Partition, partition_layers
from .stage import LoadedStage
from .stage_ends import StageEnds

__all__ = [
    "HEAD_WEIGHT",
    "Channels",
    "LoadedStage",
    "Partition",
    "StageEnds",
    "StageLinks",
    "StageLost",
    "load_stage",
    "open_channels",
    "outline_stage",
    "partition_layers",
]
