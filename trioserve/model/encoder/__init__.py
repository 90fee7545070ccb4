"""Reads whole texts at once: tokens in, the last layer's states out.

Knows torch and transformers; does not know what is made of the states (that is
model/pooling), nor requests or texts. What runs is any encoder or decoder that
transformers builds. The tokens of a step lie flat and only attention sees where one
input ends (flat.py); where attention cannot be replaced, inputs of about the same length
are padded to rectangles (rectangles.py). Which of the two is right for a model is tried
out when it is loaded (check.py), not looked up.

The door:
  find_task       what a model's files say that it is for
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
