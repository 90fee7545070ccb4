"""Each shard runs its part of an adapter, and together they write what the whole model writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trioserve.errors import InvalidAdapter

from ..adapters.trained import IGNORED, Adapted, train
from ..stages.test_pipeline import make_prompts, make_sequences, write_all
from .test_shards import SIZES, UNEVEN

pytestmark = IGNORED

ADAPTERS = (1, 0, 2)
DORA = {"use_dora": True, "target_modules": ["q_proj", "v_proj"]}
NETWORK = {"target_modules": ["gate_proj", "up_proj", "down_proj", "lm_head"]}
EXPERTS = {
    "target_modules": ["down_proj", "lm_head"],
    "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
}


@pytest.mark.parametrize(
    ("model_type", "changes", "first", "second", "kernels"),
    [
        # Three heads of keys for two shards, and biases.
        ("qwen2", UNEVEN, DORA, NETWORK, "torch"),
        ("qwen2", UNEVEN, DORA, NETWORK, "native"),
        # One product of queries, keys and values, whose weight has the inputs in front.
        (
            "gpt2",
            {},
            {"target_modules": ["c_attn"], "fan_in_fan_out": True},
            {"target_modules": ["c_attn", "c_proj", "c_fc"]},
            "torch",
        ),
        ("qwen2_moe", {}, DORA, EXPERTS, "torch"),
        ("qwen2_moe", {}, DORA, EXPERTS, "native"),
    ],
)
def test_shards_write_with_adapters_what_the_whole_model_writes(
    split: Callable[..., Any],
    make_shards: Any,
    needs_kernels: None,
    tmp_path: Path,
    model_type: str,
    changes: dict[str, Any],
    first: dict[str, Any],
    second: dict[str, Any],
    kernels: str,
) -> None:
    model = split(model_type, **changes)
    adapted = Adapted(
        model.folder,
        {
            1: train(model.folder, tmp_path / "1", seed=1, **first),
            2: train(model.folder, tmp_path / "2", seed=2, **second),
        },
    )
    expected = adapted.write(model.loaded, make_prompts(), ADAPTERS)
    shards = make_shards(model.shards(2, kernels), **SIZES)
    for number in (1, 2):
        facts = [adapted.load(runner, number) for runner in shards.runners]
        assert not any(each.unmatched for each in facts)
    sequences = make_sequences(make_prompts(), adapters=ADAPTERS)
    assert write_all(shards.launch, sequences, depth=2) == expected


def test_magnitudes_of_products_with_shared_inputs_are_refused(
    split: Callable[..., Any], make_shards: Any, tmp_path: Path
) -> None:
    model = split("qwen2", **UNEVEN)
    folder = train(model.folder, tmp_path, use_dora=True, target_modules=["o_proj"])
    shards = make_shards(model.shards(2), **SIZES)
    with pytest.raises(InvalidAdapter, match="use_dora is not supported for .*o_proj"):
        Adapted(model.folder, {1: folder}).load(shards.runners[0], 1)
