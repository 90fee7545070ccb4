"""Carries a StepPlan to the device and brings a StepResult back.

Knows torch and transformers; does not know requests, text, threads or trio. What runs
is any decoder that transformers builds: its attention is replaced by one function over
a paged cache (attention/), everything else is transformers' own. Prompts may hold
vectors besides tokens (inputs/): those that came as such, and those that a model's
own encoder makes of an image (loading/vision.py names the kinds of models that see).

A model may be spread over processes; what each of them does is in stages/.

Models that do not write have rooms of their own: encoder/ reads texts, pooling/ makes
vectors and scores of what was read.

The door:
  outline_model           a folder -> Outline, without its weights
  takes_images            whether a folder's model sees
  load_model              a folder -> LoadedModel
  count_blocks            how many KV blocks the device's memory holds
  ModelRunner             .launch(StepPlan) -> LaunchedStep, from one thread at a time;
                          its .finish() -> StepResult, from any
"""

import os

# GNU OpenMP's threads spin for milliseconds while they wait for each other. Where
# anything else wants one of the cores, such as the HTTP half of this server, they spin
# on the very core that the other thread needs: a step of 40 ms was measured to take
# seconds. After 10,000 turns, a tenth of a millisecond, they sleep instead: that outlasts
# the Python between two operators, which 1000 turns do not (12 tokens of a small encoder
# then take 8.8 ms in place of 5.7). The library reads this when torch is first imported;
# who set one of the two, decides.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# isort: split
from .loading.facts import takes_images  # noqa: E402
from .loading.load import load_model  # noqa: E402
from .loading.loaded import LoadedModel  # noqa: E402
from .loading.outline import Outline, outline_model  # noqa: E402
from .runner import ModelRunner, count_blocks  # noqa: E402

__all__ = [
    "LoadedModel",
    "ModelRunner",
    "Outline",
    "count_blocks",
    "load_model",
    "outline_model",
    "takes_images",
]
