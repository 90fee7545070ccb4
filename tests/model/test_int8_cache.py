"""A model with a KV cache of eight bits answers nearly the same, and the same in every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model
from trioserve.model.open import load_part, outline, preview
from trioserve.types.stage_place import Shard, StagePlace

from .planning import Planner, make_prompt

INT8 = ModelConfig(device="cpu", kv_cache_dtype="int8")
NUM_TOKENS = 12


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_token_takes_a_byte_a_number_and_four_a_scale(
    tiny: Callable[..., Any], kernels: Any
) -> None:
    # 3 layers, two of them with windows; 2 heads of 16, keys and values.
    folder = tiny("gemma2").folder
    config = replace(INT8, kernels=kernels)
    loaded = load_model(folder, config, name="tiny")
    info = loaded.info
    assert loaded.kv_dtype == torch.int8
    assert info.kv_bytes_per_token == 3 * 2 * 2 * (16 + 4)
    assert info.windows is not None
    assert info.windows.kv_bytes_per_token % (2 * 2 * (16 + 4)) == 0
    told = outline(folder, config)
    assert told is not None and told.windows == info.windows
    assert told.kv_bytes_per_token == info.kv_bytes_per_token
    assert preview(folder, config).kv_bytes_per_token == info.kv_bytes_per_token


@pytest.mark.parametrize(
    "place",
    [
        StagePlace(stage=1, num_stages=2),
        StagePlace(stage=0, num_stages=1, shard=Shard(index=1, count=2)),
    ],
    ids=["stage", "shard"],
)
def test_stages_and_shards_keep_eight_bits_too(
    tiny: Callable[..., Any], place: StagePlace
) -> None:
    model = tiny("llama")
    config = replace(INT8, kernels="torch")
    part = load_part(model.folder, config, name="tiny", place=place, group=None)
    assert part.kv_dtype == torch.int8
    # Half of the layers, or of the heads, and a quarter of the bytes but for the scales.
    whole = model.loaded.info.kv_bytes_per_token
    dim = model.loaded.layers[0].key_dim
    assert part.info.kv_bytes_per_token == whole / 2 * (dim + 4) / (4 * dim)
    told = outline(model.folder, config, place)
    assert told is not None
    assert told.kv_bytes_per_token == part.info.kv_bytes_per_token


@pytest.mark.parametrize(
    "model_type", ["llama", "gemma2", "gpt_oss", "qwen3_5_text", "deepseek_v3"]
)
def test_answers_are_the_same_in_all_steps_and_near_to_the_exact_ones(
    tiny_by_kernels: Callable[[str], Any], model_type: str
) -> None:
    exact = tiny_by_kernels(model_type)
    model = replace(exact.loaded, kv_dtype=torch.int8)
    prompts = [make_prompt(length, seed=length) for length in (23, 6, 38)]
    planner = Planner(model)
    alone = [planner.begin(prompt) for prompt in prompts]
    for each in alone:
        planner.run(each, num_tokens=NUM_TOKENS)
    outputs = [each.outputs for each in alone]

    planner = Planner(model)
    together = [planner.begin(each, slot=i) for i, each in enumerate(prompts)]
    planner.run(*together, num_tokens=NUM_TOKENS // 2, chunk=7)
    planner.preempt(together[1], slot=3)
    planner.run(*together, num_tokens=NUM_TOKENS, chunk=7)
    assert [each.outputs for each in together] == outputs

    if not exact.loaded.states:
        # Its first 20 tokens are in five blocks.
        again = planner.begin(prompts[2], slot=4, shared=together[2].block_ids[:5])
        planner.run(again, num_tokens=NUM_TOKENS)
        assert again.outputs == outputs[2]

    plain = Planner(exact.loaded)
    same = 0
    for prompt, output in zip(prompts, outputs):
        sequence = plain.begin(prompt)
        plain.run(sequence, num_tokens=NUM_TOKENS)
        same += sum(map(int.__eq__, sequence.outputs, output))
    assert same >= 2 / 3 * NUM_TOKENS * len(prompts)
