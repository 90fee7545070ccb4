"""Models with windows write the same while their window blocks are given back and taken again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trioserve.model.attention.windows import find_windows, list_windowed
from trioserve.types.windows import WindowLayers

from .planning import make_prompt
from .windowed import WindowedServer


@pytest.mark.parametrize(
    "kernels, model_type",
    [
        ("torch", "gemma3_text"),
        ("torch", "gpt_oss"),
        ("native", "gemma4_text"),
        ("native", "mistral"),
    ],
)
def test_prompts_longer_than_the_window_write_what_generate_writes(
    tiny: Callable[..., Any], needs_kernels: None, kernels: str, model_type: str
) -> None:
    """Alone, in chunks of 17, behind a prefix, and beside each other."""
    model = tiny(model_type, kernels=kernels)
    # A window and a chunk have 24 tokens.
    alone = WindowedServer(model.loaded, num_window_blocks=8)
    prompt = make_prompt(70)
    (output,) = alone.answer(prompt, num_tokens=12)
    model.check_behind(prompt, output)
    server = WindowedServer(model.loaded, num_window_blocks=28)
    (same,) = server.answer(prompt, num_tokens=12)
    assert same == output
    prompts = [[*prompt, *output, 5, 6, 7], make_prompt(33, 1), make_prompt(5, 2)]
    for turn, answer in zip(prompts, server.answer(*prompts, num_tokens=12)):
        model.check_behind(turn, answer)
    counters = server.scheduler.counters()
    assert counters.num_prefix_hit_tokens == 80
    assert counters.num_preemptions == 0


@pytest.mark.parametrize(
    "kernels, model_type", [("torch", "gpt_oss"), ("native", "gemma3_text")]
)
def test_preempted_sequences_write_what_generate_writes(
    tiny: Callable[..., Any], needs_kernels: None, kernels: str, model_type: str
) -> None:
    model = tiny(model_type, kernels=kernels)
    server = WindowedServer(model.loaded, num_blocks=30, num_window_blocks=20)
    prompts = [make_prompt(length, length) for length in (25, 20, 15)]
    for prompt, answer in zip(prompts, server.answer(*prompts, num_tokens=30)):
        model.check_behind(prompt, answer)
    assert server.scheduler.counters().num_preemptions > 0


def test_a_layer_belongs_to_the_group_of_the_layer_whose_cache_it_reads(
    tiny: Callable[..., Any],
) -> None:
    sliding, full, *_ = tiny("gemma3_text").loaded.layers
    assert list_windowed([sliding, full]) == [True, False]
    shared = [sliding, full, replace(sliding, shares=0), replace(full, shares=1)]
    assert list_windowed(shared) == [True, False, True, False]
    # A query that sees all keys needs them, wherever they are.
    mixed = [sliding, replace(full, shares=0), replace(sliding, window=3)]
    assert list_windowed(mixed) == [False, False, True]
    # 2 heads of 16, keys and values of two bytes.
    layers = [sliding, full, replace(full, chunk=16)]
    windows = find_windows(layers, torch.float16)
    assert windows == WindowLayers(window=16, kv_bytes_per_token=2 * 2 * 2 * 16 * 2)
    assert (
        find_windows([full, replace(sliding, is_causal=False)], torch.float16) is None
    )


def test_window_blocks_take_their_own_memory_alone(tiny: Callable[..., Any]) -> None:
    model = tiny("gemma3_text").loaded
    runner = WindowedServer(model, num_blocks=50, num_window_blocks=9).runner
    counts = [len(cache.blocks) for cache in runner._layers._attention.caches]  # type: ignore[attr-defined]
    assert counts == [9, 50, 9]
    assert torch.equal(runner._tables.get_table(False), runner._tables.block_ids)
