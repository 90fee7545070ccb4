"""Carries a StepPlan to the device and brings a StepResult back.

This room knows torch and transformers. It does not know requests, text, threads or trio.
It runs any decoder that transformers builds. A function over a paged cache replaces the
model's attention (attention/); everything else is transformers' own. Prompts may hold
vectors besides tokens (inputs/): either vectors that came with the request, or vectors
that the model's own encoder makes of an image (runtimes/vision.py lists the models with
such an encoder).

A model may be spread over processes: stages/ runs some of its layers, shards/ a part of each.

Models that generate no text have rooms of their own: encoder/ reads texts, and pooling/
turns the encoder's states into vectors and scores.

open        a folder -> Outline, and a model with its weights: whole, a stage or a shard
runner      ModelRunner: .launch(StepPlan) -> LaunchedStep, in one thread at a time; its
            .finish() -> StepResult, in any thread
trial       the memory that steps need beside the KV cache
runtimes    the ways to run layers; self_check compares them
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
