"""A stage of a plain Llama is loaded without transformers, and is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.model.loading.plain.llama import load_plain
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.stages.loading import load_stage, outline_stage
from trioserve.model.stages.plain import load_plain_stage, outline_plain_stage
from trioserve.model.stages.stage import LoadedStage
from trioserve.testing.models import save_tiny_model
from trioserve.types.stage_place import StagePlace

from ..planning import compute_on_kernels

pytestmark = pytest.mark.usefixtures("needs_kernels")

CPU = ModelConfig(device="cpu")
NUM_LAYERS = 3


def save(folder: Path, **changes: Any) -> Path:
    return save_tiny_model("llama", folder, num_hidden_layers=NUM_LAYERS, **changes)


def load(folder: Path, num_stages: int) -> list[LoadedStage]:
    stages = [
        load_plain_stage(
            folder, CPU, name="tiny", place=StagePlace(stage=i, num_stages=num_stages)
        )
        for i in range(num_stages)
    ]
    loaded = [stage for stage in stages if stage is not None]
    assert len(loaded) == num_stages
    return loaded


@pytest.mark.parametrize("num_stages", [2, NUM_LAYERS])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_stages_compute_what_the_model_does(
    tmp_path: Path, num_stages: int, is_tied: bool
) -> None:
    folder = save(tmp_path, tie_word_embeddings=is_tied)
    whole = load_plain(folder, CPU, name="tiny")
    assert isinstance(whole, LoadedModel)
    expected = compute_on_kernels(whole)
    actual = compute_on_kernels(*load(folder, num_stages))
    assert torch.allclose(actual, expected, atol=1e-5)


def test_a_stage_may_be_loaded_either_way(tmp_path: Path) -> None:
    """Stages of one model may be loaded differently, and must fit together."""
    folder = save(tmp_path)
    for number, plain in enumerate(load(folder, 2)):
        place = StagePlace(stage=number, num_stages=2)
        stage = load_stage(folder, CPU, name="tiny", place=place)
        assert plain.partition == stage.partition
        assert plain.info == stage.info
        assert (plain.hidden_width, plain.dtype) == (stage.hidden_width, stage.dtype)
        assert outline_plain_stage(folder, CPU, place=place) == outline_stage(
            folder, CPU, place=place
        )


def test_another_model_is_left_to_transformers(tmp_path: Path) -> None:
    folder = save_tiny_model("qwen3", tmp_path)
    assert (
        load_plain_stage(folder, CPU, name="x", place=StagePlace(stage=0, num_stages=2))
        is None
    )
    assert (
        outline_plain_stage(folder, CPU, place=StagePlace(stage=0, num_stages=2))
        is None
    )
