"""Attention that rotates neighbours, or nothing, and attention that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.loading.load import load_model
from trioserve.model.loading.preview import preview_model

from ...families.compare import build
from ...families.tiny import make_tiny

pytestmark = pytest.mark.usefixtures("needs_kernels")

NATIVE = ModelConfig(device="cpu", kernels="native")


def save(model_type: str, folder: Path, **changes: Any) -> Path:
    config = make_tiny(CONFIG_MAPPING[model_type])
    for name, value in changes.items():
        setattr(config, name, value)
    build(config).save_pretrained(folder)
    return folder


# Neighbours in a part of each head, between norms behind attention; a layer that rotates
# nothing.
@pytest.mark.parametrize("model_type", ["glm4", "smollm3"])
def test_kernels_rotate_neighbours_and_nothing(tmp_path: Path, model_type: str) -> None:
    """A load compares them with the modules."""
    folder = save(model_type, tmp_path)
    assert preview_model(folder, NATIVE).no_kernels is None
    assert load_model(folder, NATIVE, name="tiny").info.kernels.startswith("native")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("hunyuan_v1_dense", "HunYuanDenseV1Attention computes queries by another"),
        ("mimo_v2_flash", "MiMoV2FlashAttention computes values by another formula"),
        ("laguna", "LagunaAttention has g_proj"),
    ],
)
def test_other_formulas_are_refused(
    tmp_path: Path, model_type: str, reason: str
) -> None:
    folder = save(model_type, tmp_path)
    for look in (preview_model, lambda *each: load_model(*each, name="tiny")):
        with pytest.raises(InvalidConfig, match=reason):
            look(folder, NATIVE)


def test_queries_that_grow_with_their_positions(tmp_path: Path) -> None:
    """The kernels do not scale them, and no short text would tell."""
    rotary = {"rope_type": "default", "rope_theta": 10000.0}
    rotary |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 128}
    folder = save("ministral3", tmp_path, rope_parameters=rotary)
    with pytest.raises(InvalidConfig, match="Ministral3Attention computes queries"):
        load_model(folder, NATIVE, name="tiny")
    shorter = ModelConfig(device="cpu", kernels="native", max_model_len=128)
    assert preview_model(folder, shorter).no_kernels is None
    assert load_model(folder, shorter, name="tiny").info.kernels.startswith("native")
