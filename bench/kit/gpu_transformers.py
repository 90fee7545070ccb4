"""The part of bench/gpu.py that measures transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import random
from typing import Any

from kit.gpu_parts import PROMPT_TOKENS, Figures, Load, find_device, subtract, time_once
import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
)

# transformers sizes the cache by the memory that is free. On a CPU that is far too much.
_CPU_CACHE = {"num_blocks": 64, "max_batch_tokens": 256}


def measure_transformers(
    folder: Path, load: Load, emit: Callable[[Figures], None], *, batching: bool
) -> None:
    """Measure transformers, with its fastest attention.

    Args:
      batching: measure its continuous batching, and else generate() with static batches.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    model = model.to(find_device()).eval()
    if batching:
        _measure_batching(model, load, emit)
    else:
        _measure_generate(model, load, emit)


def _measure_generate(model: Any, load: Load, emit: Callable[[Figures], None]) -> None:
    @torch.inference_mode()
    def run(count: int, prompt: int, steps: int) -> float:
        tokens = torch.randint(
            2, model.config.vocab_size, (count, prompt), device=model.device
        )
        return time_once(
            lambda: model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                min_new_tokens=steps,
                max_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
            )
        )

    run(1, PROMPT_TOKENS, 2)
    figures: Figures = {"kernels": "transformers", "decode": {}, "prefill": {}}
    for count in load.batches:
        times = [run(count, PROMPT_TOKENS, steps) for steps in load.steps]
        figures["decode"][count] = subtract(times, load)
        emit(figures)
    for length in load.prompts:
        run(1, length, 1)
        figures["prefill"][length] = run(1, length, 1)
        emit(figures)


def _measure_batching(model: Any, load: Load, emit: Callable[[Figures], None]) -> None:
    on_gpu = model.device.type == "cuda"
    settings = {} if on_gpu else _CPU_CACHE
    steps = load.steps[1]
    # Nothing ends an answer but its length.
    rules = GenerationConfig(
        max_new_tokens=steps, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    figures: Figures = {"kernels": "transformers", "decode": {}, "prefill": {}}
    for count in load.batches:
        prompts = [
            random.choices(range(2, model.config.vocab_size), k=PROMPT_TOKENS)
            for _ in range(count)
        ]
        outputs = model.generate_batch(
            prompts,
            generation_config=rules,
            continuous_batching_config=ContinuousBatchingConfig(**settings),
            record_timestamps=True,
            warmup=on_gpu,
        )
        times = [each.timestamps for each in outputs.values()]
        if {len(each) for each in times} != {steps}:
            raise ValueError("an answer has another length than it should")
        # All prompts have been read when the last answer begins.
        begun, ended = max(each[0] for each in times), max(each[-1] for each in times)
        figures["decode"][count] = (ended - begun) / (steps - 1)
        emit(figures)
