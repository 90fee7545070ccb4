"""Tiny models of all types answer as transformers does, or are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from trioserve.config import ModelConfig
from trioserve.model.loading.files.positions import count_positions
from trioserve.model.loading.preview import preview_model

from .compare import build, compare, list_types
from .record import read_record
from .tiny import make_tiny

RECORD = read_record()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    [
        # Dense, of a class that may have states.
        "granitemoehybrid",
        # Chunks, and positions that its modules would count by themselves.
        "llama4_text",
        # Only its mask has the window.
        "phimoe",
    ],
)
def test_some_types(tmp_path: Path, model_type: str) -> None:
    row = compare(model_type, tmp_path)
    assert row.result == "equal" and row == RECORD[model_type]


def test_a_model_that_counts_positions_by_itself_is_refused(tmp_path: Path) -> None:
    row = compare("bart", tmp_path)
    assert row.result == "refused" and row == RECORD["bart"]


@pytest.mark.matrix
@pytest.mark.parametrize("model_type", list_types())
def test_all_types(tmp_path: Path, model_type: str) -> None:
    assert compare(model_type, tmp_path) == RECORD[model_type]


@pytest.mark.matrix
@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize(
    "model_type", [name for name, row in RECORD.items() if row.result == "equal"]
)
def test_a_preview_says_what_runs(tmp_path: Path, model_type: str) -> None:
    config = make_tiny(CONFIG_MAPPING[model_type])
    build(config).save_pretrained(tmp_path)
    options: dict[str, Any] = {"device": "cpu"}
    if count_positions(config) is None:
        options["max_model_len"] = 400
    preview = preview_model(tmp_path, ModelConfig(**options))
    runs = "native" if preview.no_kernels is None else "torch"
    assert runs == RECORD[model_type].detail, preview.no_kernels
