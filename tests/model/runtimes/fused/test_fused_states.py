"""Models with states on Triton's kernels compute what transformers' modules compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import functools
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
import torch
from transformers import AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.model.loading.choose_runtime import make_decoder
from trioserve.model.loading.files.facts import read_facts
from trioserve.model.loading.load import load_modules
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check import steps

from ...conftest import Tiny, load_oracle
from ...planning import Planner, make_prompt
from ..native.test_native_states import save
from .test_decoder import DEVICE, GRAPHS, capture

require_triton()

# Gated DeltaNet beside attention with gates, short convolutions, and Mamba-2 beside attention
# without rotation.
TYPES = [
    *("qwen3_5_text", "lfm2"),
    pytest.param("granitemoehybrid", marks=pytest.mark.matrix),
]


# Tiny beside the sizes of other tests: the interpreter takes a millisecond for each token and
# head.
MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    # These kernels know no experts.
    "num_local_experts": 0,
}


@pytest.fixture(scope="module")
def build(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Tiny]
) -> Callable[[str], Tiny]:
    """Build a tiny model of a type on Triton's kernels, once for all tests."""

    @functools.cache
    def build(model_type: str) -> Tiny:
        if model_type != "granitemoehybrid":
            model = tiny(model_type, DEVICE)
            return replace(model, loaded=_load(model.folder))
        folder = save(model_type, tmp_path_factory.mktemp(model_type), **MAMBA2)
        oracle = load_oracle(AutoModelForCausalLM, folder, DEVICE)
        return Tiny(folder=folder, loaded=_load(folder), oracle=oracle)

    return build


def _load(folder: Path) -> LoadedModel:
    from trioserve.model.runtimes.fused.decoder import FusedDecoder

    config = ModelConfig(device=DEVICE, dtype="float32")
    loaded = load_modules(folder, config, read_facts(folder, config), "tiny")
    with pytest.MonkeyPatch.context() as patch:
        # The steps of a load would take a minute on the interpreter.
        patch.setattr(steps, "_ENDS_IN_FLOAT32", [(4, 2), (6, 3), (7, 4)])
        decoder = make_decoder(
            loaded, lambda parts: FusedDecoder(parts, lambda: capture), int8=False
        )
    return replace(loaded, native=decoder)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_model_writes_what_generate_writes(
    build: Callable[[str], Any], model_type: str
) -> None:
    """In chunks, beside others, in the slot of a former sequence, and after a preemption."""
    model = build(model_type)
    planner = Planner(model.loaded)
    former = planner.begin(make_prompt(2), slot=0)
    planner.run(former, num_tokens=1)
    sequences = [planner.begin(make_prompt(5, slot), slot=slot) for slot in (0, 1)]
    planner.step((sequences[0], 3))
    planner.step((sequences[1], 4), (sequences[0], 2))
    planner.step((sequences[0], 1), (sequences[1], 1))
    planner.preempt(sequences[1], slot=2)
    planner.run(*sequences, num_tokens=2)
    model.check(former, *sequences)
