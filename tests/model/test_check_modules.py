"""Modules that would compute other numbers on paged attention are refused; rounding is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.errors import UnsupportedModel
from trioserve.model.loading import check_modules
from trioserve.model.loading.load import load_model
from trioserve.testing.models import save_tiny_model


@pytest.fixture(autouse=True)
def small_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the rounding of 16 bits."""
    monkeypatch.setattr(check_modules, "_TOLERANCE_OF_16_BITS", 1e-4)


def load(folder: Path, dtype: str) -> Any:
    config: Any = ModelConfig(device="cpu", kernels="torch", dtype=dtype)
    return load_model(folder, config, name="tiny")


def test_rounding_is_no_mistake(folder: Path) -> None:
    """Experts that rounding chooses would differ by more, in transformers' own passes, too."""
    assert load(folder, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_takes_no_positions_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    lay_out = check_modules.lay_out

    def forget_positions(*arguments: Any, **more: Any) -> Any:
        inputs = lay_out(*arguments, **more)
        return replace(inputs, positions=np.zeros_like(inputs.positions))

    monkeypatch.setattr(check_modules, "lay_out", forget_positions)
    with pytest.raises(UnsupportedModel, match="it computes other numbers than alone"):
        load(folder, dtype)


def test_a_state_that_is_forgotten_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_model("lfm2", tmp_path)
    monkeypatch.setattr(
        "trioserve.model.states.step._PooledCache.store", lambda _: None
    )
    with pytest.raises(UnsupportedModel, match="it computes other numbers than alone"):
        load(tmp_path, "float32")
