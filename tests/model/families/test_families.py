"""Tiny models of all types answer as transformers does, or are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from .compare import compare, list_types
from .record import read_record

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
