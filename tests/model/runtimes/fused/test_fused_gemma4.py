"""Gemma 4 on Triton's kernels writes what generate() writes, in graphs too.

Its layers have heads of different sizes, and some read the keys and values of others. There are
norms of values, vectors that layers look up for each token, and experts beside a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
from torch import Tensor

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model

from ...conftest import Tiny
from ...planning import Planner, make_prompt
from ...test_gemma4 import save
from .graphs import DEVICE, GRAPHS, check_on_gpu, load

require_triton()

from trioserve.model.runtimes.fused.layer import Layer  # noqa: E402

# The interpreter takes its time.
CHANGES: dict[str, dict[str, Any]] = {
    "26B-A4B": {
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts": 4,
    }
}


def build(kind: str, folder: Path) -> Tiny:
    path, oracle = save(kind, folder, DEVICE, **CHANGES.get(kind, {}))
    loaded = load_model(path, ModelConfig(device=DEVICE, kernels="torch"), name="tiny")
    return Tiny(path, loaded, oracle)


# Sigmoids of large numbers, and padding, which computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "kind",
    [
        *("E2B", "26B-A4B"),
        *(pytest.param(each, marks=pytest.mark.matrix) for each in ("31B", "12B")),
    ],
)
def test_a_model_writes_what_generate_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Behind a window, in chunks, beside another, and in graphs."""
    counts: list[int] = []

    def add_up(layer: Layer, added: Tensor) -> Tensor:
        counts.append(len(added))
        return added

    monkeypatch.setattr(Layer, "_sum", add_up)
    model = build(kind, tmp_path)
    planner = Planner(load(model), max_num_seqs=2, max_model_len=32)
    num_graphs = len(GRAPHS)
    if kind == "E2B":
        # Vectors are looked up there, too.
        planner.runner.warm_up()
    lengths = 10, 3
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate(lengths)
    ]
    counts.clear()
    planner.step((sequences[0], 7))
    num_sublayers = 3 if kind == "E2B" else 2
    # Only what keeps keys for later steps, and all that is before it.
    assert counts == [7] * num_sublayers
    counts.clear()
    planner.step((sequences[1], 3), (sequences[0], 3))
    assert counts[num_sublayers - 1 : num_sublayers + 2] == [6, 2, 2]
    planner.run(*sequences, num_tokens=2)
    model.check(*sequences)
    assert sum(graph.num_replays for graph in GRAPHS[num_graphs:]) == (kind == "E2B")


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["E2B", "26B-A4B"])
def test_a_gpu_runs_it_in_graphs(tmp_path: Path, kind: str, dtype: str) -> None:
    check_on_gpu(build(kind, tmp_path), dtype)
