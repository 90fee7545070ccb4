"""The outline of a model is the same without its weights as with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from trioserve.config import CacheConfig, ModelConfig
from trioserve.errors import InvalidConfig, UnsupportedModel
from trioserve.model.attention.cache_memory import count_fitting_blocks
from trioserve.model.loading.outline import outline_model
from trioserve.model.stages.loading import outline_stage
from trioserve.testing.models import save_tiny_model
from trioserve.types.stage_place import StagePlace
from trioserve.types.windows import CacheBlocks

CPU = ModelConfig(device="cpu")


def test_so_it_is_of_a_model_that_sees(tiny_vision: Callable[..., Any]) -> None:
    model = tiny_vision("qwen2_vl")
    outline = outline_model(model.folder, CPU)
    assert outline is not None
    assert outline.kv_bytes_per_token == model.loaded.info.kv_bytes_per_token


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model without weights."""
    folder = save_tiny_model("llama", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
def test_the_configured_type_counts(folder: Path, dtype: Any, size: int) -> None:
    outline = outline_model(folder, ModelConfig(device="cpu", dtype=dtype))
    assert outline is not None
    # 2 layers, 2 heads of 8, keys and values.
    assert outline.kv_bytes_per_token == 2 * 2 * 2 * 8 * size


def test_a_type_that_only_the_weights_tell_is_left_to_them(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"dtype"', '"said_nothing"'))
    assert outline_model(folder, CPU) is None
    assert outline_stage(folder, CPU, place=StagePlace(stage=0, num_stages=2)) is None


def test_a_model_that_cannot_run_is_refused_without_its_weights(tmp_path: Path) -> None:
    AutoConfig.for_model("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="looks at tokens that follow"):
        outline_model(tmp_path, CPU)


@pytest.mark.parametrize(
    "options, field",
    [
        ({"device": "cuda:99"}, "device"),
        ({"max_model_len": 129}, "max_model_len"),
    ],
)
def test_options_that_make_no_sense_are_refused_without_weights(
    folder: Path, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        outline_model(folder, ModelConfig(**options))
    assert caught.value.field == field


def test_a_stage_keeps_the_latents_of_its_layers(tmp_path: Path) -> None:
    folder = save_tiny_model("deepseek_v3", tmp_path)
    outline = outline_stage(folder, CPU, place=StagePlace(stage=0, num_stages=2))
    assert outline is not None
    # A latent of 16 numbers and a key of 4, in one layer.
    assert outline.kv_bytes_per_token == (16 + 4) * 4


def test_more_stages_than_layers_are_refused_without_weights(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="3 stages cannot share 2 layers"):
        outline_stage(folder, CPU, place=StagePlace(stage=0, num_stages=3))


def test_a_stage_that_keeps_more_than_its_memory_is_known_without_weights(
    folder: Path,
) -> None:
    outline = outline_stage(folder, CPU, place=StagePlace(stage=1, num_stages=2))
    assert outline is not None
    assert outline.device == torch.device("cpu")
    count = partial(
        count_fitting_blocks,
        outline.kv_bytes_per_token,
        max_num_seqs=1,
        max_model_len=outline.max_model_len,
        device=outline.device,
    )
    with pytest.raises(InvalidConfig, match="at least 128 must fit"):
        count(CacheConfig(kv_cache_memory="16000"))
    assert count(CacheConfig(kv_cache_memory="16KiB")) == CacheBlocks(num_blocks=8)
