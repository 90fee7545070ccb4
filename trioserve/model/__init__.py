"""Carries a StepPlan to the device and brings a StepResult back.

This room knows torch and transformers. It does not know requests, text, threads or trio.
It runs any decoder that transformers builds. A function over a paged cache replaces the
model's attention (attention/); everything else is transformers' own. Prompts may hold
vectors besides tokens (inputs/): either vectors that came with the request, or vectors
that the model's own encoder makes of an image (loading/vision.py lists the models with
such an encoder).

A model may be spread over processes; stages/ runs one part of it.

Models that generate no text have rooms of their own: encoder/ reads texts, and pooling/
turns the encoder's states into vectors and scores.

The door:
  outline_model           a folder -> Outline, without its weights
  takes_images            whether a folder's model takes images
  describes_plain_llama   whether a folder's model may need no transformers
  outline_plain           a folder -> Outline, if its model needs no transformers
  load_plain              a folder or a GGUF file -> LoadedModel, if it needs none
  load_packed             a GGUF file -> LoadedModel, if the kernels can run its blocks
  load_model              a folder -> LoadedModel
  count_fitting_blocks    how many KV blocks fit into the device's memory
  measure_steps           the memory that steps need beside the KV cache
  ModelRunner             .launch(StepPlan) -> LaunchedStep, in one thread at a time;
                          its .finish() -> StepResult, in any thread
"""

import os

# GNU OpenMP's threads spin for milliseconds while they wait for each other. If anything
# else needs a core, such as the HTTP half of this server, they spin on the core that it
# needs: a step of 40 ms was measured to take seconds. With this setting they sleep after
# 10,000 turns, a tenth of a millisecond. That is longer than the Python code between two
# operators; 1000 turns are not (12 tokens of a small encoder then take 8.8 ms instead of
# 5.7). The library reads the setting when torch is first imported. A user's own setting
# of either variable stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
