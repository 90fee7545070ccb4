"""Reads whole texts at once: tokens in, the last layer's states out.

This room knows torch and transformers. It does not know requests or texts, nor the use of
the states (model/pooling/). It runs any encoder or decoder that transformers builds. The
tokens of a step are laid flat, and only attention uses the ends of inputs. On a CPU the
native kernels run the layers of BERT's many descendants (native.py). Other models run by
their modules (flat.py). If a model's attention cannot be replaced, inputs of about the
same length are padded to rectangles (rectangles.py). The right way for a model is found by
trying them when it is loaded (check.py).

The door:
  find_task       the task of a model, by its files
  check_encoder   whether it can be loaded, without its weights
  load_encoder    a folder -> LoadedEncoder
"""

from .encoder import Activation, EncodedInputs, LoadedEncoder
from .loading import check_encoder, load_encoder
from .task import find_task

__all__ = [
    "Activation",
    "EncodedInputs",
    "LoadedEncoder",
    "check_encoder",
    "find_task",
    "load_encoder",
]
