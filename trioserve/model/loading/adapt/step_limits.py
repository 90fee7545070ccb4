"""The limits of Mamba-2's time steps, as the configuration has them.

transformers' Nemotron-H bounds the time steps of prompts by `time_step_min`, which is a bound of
initial weights, and those of single tokens not at all. So an answer would depend on the cut of
its text. The weights' authors, vLLM and llama.cpp use `time_step_limit`, which is no bound by
default. Source: https://github.com/huggingface/transformers/pull/48989
"""

from __future__ import annotations

from typing import Any


def follow_step_limits(model: Any) -> None:
    """Give layers with states the limits that the configuration has, if it has some."""
    limits = getattr(model.config.get_text_config(), "time_step_limit", None)
    if limits is None:
        return
    least, largest = map(float, limits)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (least, largest)
