"""How many blocks a memory holds, and that fresh ones are zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trioserve.config import CacheConfig
from trioserve.errors import InvalidConfig
from trioserve.model import count_blocks
from trioserve.model.kv_cache import allocate


def count(model: Any, **fields: object) -> int:
    config = CacheConfig(block_size=16, **fields)  # type: ignore[arg-type]
    return count_blocks(model.loaded, config, max_num_seqs=4, max_model_len=100)


def test_a_token_takes_keys_and_values_of_all_layers(
    tiny: Callable[..., Any],
) -> None:
    # 3 layers, 2 heads of 16, keys and values in float32.
    assert tiny("gemma2").loaded.info.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4


def test_memory_in_bytes(tiny: Callable[..., Any]) -> None:
    model = tiny("llama")
    block_bytes = 16 * model.loaded.info.kv_bytes_per_token
    assert count(model, kv_cache_memory=str(5 * block_bytes + 1)) == 5


def test_no_more_than_the_sequences_could_use(tiny: Callable[..., Any]) -> None:
    # 4 sequences of 7 blocks.
    assert count(tiny("llama"), kv_cache_memory="64MiB") == 28
    assert count(tiny("llama")) == 28
    assert count(tiny("llama"), kv_cache_fraction=0.01) == 28


@pytest.mark.parametrize(
    "field, value",
    [
        ("kv_cache_memory", "1KiB"),
        ("kv_cache_memory", "1000TiB"),
        ("kv_cache_fraction", 1e-12),
    ],
)
def test_memory_that_makes_no_sense(
    tiny: Callable[..., Any], field: str, value: object
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        count(tiny("llama"), **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fresh_blocks_are_zero(tiny: Callable[..., Any], dtype: torch.dtype) -> None:
    caches = allocate(
        tiny("gemma2").loaded.layers,
        num_blocks=3,
        block_size=4,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    for cache in caches:
        keys, values = cache.read(torch.tensor([2, 0]))
        assert keys.shape == values.shape == (8, 2, 16)
        assert not keys.any() and not values.any()
