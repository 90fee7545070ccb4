from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
import torch

from trioserve.weights import Weights, measure_weights


def test_safetensors_are_measured_by_their_headers(tmp_path: Path) -> None:
    """Most numbers have the type that is told; packed ones have no known count."""
    for number_type, kind, count in (
        (torch.bfloat16, "BF16", 16),
        (torch.float8_e4m3fn, "F8_E4M3", 16),
        (torch.int32, "I32", 0),
    ):
        path = tmp_path / "model.safetensors"
        tensors = {"a": torch.zeros(3, 4, dtype=number_type), "b": torch.zeros(4)}
        save_file(tensors, path, metadata={"format": "pt"})
        measured = measure_weights(Weights(folder=tmp_path, name="model"))
        assert (measured.number_type, measured.num_parameters) == (kind, count)
        assert measured.num_bytes == path.stat().st_size
        assert measured.changed_at == path.stat().st_mtime
