"""The number of blocks that fit into memory; fresh blocks are zero."""

from __future__ import annotations

from collections.abc import Callable
import re
from typing import Any

import pytest
import torch

from trioserve.config import CacheConfig
from trioserve.errors import InvalidConfig
from trioserve.model.attention.backend import PagedModel
from trioserve.model.attention.cache_memory import count_fitting_blocks
from trioserve.model.attention.kv_cache import allocate


def count(model: Any, **fields: object) -> int:
    config = CacheConfig(block_size=16, **fields)  # type: ignore[arg-type]
    return count_fitting_blocks(
        model.loaded.info.kv_bytes_per_token,
        config,
        max_num_seqs=4,
        max_model_len=100,
        device=model.loaded.device,
    ).num_blocks


def test_a_token_takes_keys_and_values_of_all_layers(
    tiny: Callable[..., Any],
) -> None:
    # 3 layers, 2 heads of 16, keys and values in float32.
    assert tiny("gemma2").loaded.info.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4


def test_a_token_takes_its_latent_and_one_key_for_all_heads(
    tiny: Callable[..., Any],
) -> None:
    # 2 layers, a latent of 16 numbers and a key of 4 in float32.
    assert tiny("deepseek_v3").loaded.info.kv_bytes_per_token == 2 * (16 + 4) * 4


def test_memory_in_bytes(tiny: Callable[..., Any]) -> None:
    model = tiny("llama")
    block_bytes = 16 * model.loaded.info.kv_bytes_per_token
    assert count(model, kv_cache_memory=str(9 * block_bytes + 1)) == 9


def test_no_more_than_the_sequences_could_use(tiny: Callable[..., Any]) -> None:
    # 4 sequences of 7 blocks.
    assert count(tiny("llama"), kv_cache_memory="64MiB") == 28
    assert count(tiny("llama")) == 28
    assert count(tiny("llama"), kv_cache_fraction=0.01) == 28


@pytest.mark.parametrize("block_size, least", [(16, 512), (48, 528), (600, 600)])
def test_less_than_a_sequence_of_512_tokens_is_refused_with_the_least_that_would_do(
    block_size: int, least: int
) -> None:
    # Of SmolLM2-135M.
    kv_bytes_per_token = 23040

    def count(memory: str) -> int:
        return count_fitting_blocks(
            kv_bytes_per_token,
            CacheConfig(block_size=block_size, kv_cache_memory=memory),
            max_num_seqs=128,
            max_model_len=8192,
            device=torch.device("cpu"),
        ).num_blocks

    with pytest.raises(InvalidConfig) as caught:
        count("1MiB")
    match = re.fullmatch(
        rf"--kv-cache-memory: 1048576 bytes hold the keys and values of "
        rf"{1048576 // kv_bytes_per_token // block_size * block_size} tokens, but at "
        r"least 512 must fit: give (\d+MiB) or more by --kv-cache-memory",
        str(caught.value),
    )
    assert match is not None
    assert count(match[1]) * block_size >= least
    exact = least * kv_bytes_per_token
    assert count(str(exact)) * block_size == least
    with pytest.raises(InvalidConfig):
        count(str(exact - 1))


def test_a_shorter_models_whole_length_is_enough(tiny: Callable[..., Any]) -> None:
    model = tiny("llama")
    block_bytes = 16 * model.loaded.info.kv_bytes_per_token
    assert count(model, kv_cache_memory=str(7 * block_bytes)) == 7
    with pytest.raises(InvalidConfig, match="at least 100 must fit: give 28KiB"):
        count(model, kv_cache_memory=str(7 * block_bytes - 1))


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
    model = PagedModel(
        layers=tiny("gemma2").loaded.layers,
        num_blocks=3,
        block_size=4,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    caches = allocate(model)
    for cache in caches:
        keys, values = cache.read(torch.tensor([2, 0]))
        assert keys.shape == values.shape == (8, 2, 16)
        assert not keys.any() and not values.any()
