"""Layers that read other layers' caches, or the tokens again, write what generate() writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.loading.load import load_model
from trioserve.model.loading.preview import preview_model
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import TINY_MODELS
from trioserve.types.stage_place import StagePlace

from .conftest import Tiny, load_oracle
from .planning import Planner, make_prompt

CPU = ModelConfig(device="cpu")

_BASE = {**TINY_MODELS["gemma4_text"], "max_position_embeddings": 512}
_SHARING = {"num_kv_shared_layers": 2}
_LOOKUPS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 131}

# Checkpoint of each kind -> its model_type and its fields.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "E2B": (
        "gemma4_text",
        {**_BASE, **_SHARING, **_LOOKUPS, "use_double_wide_mlp": True}
        | {"attention_k_eq_v": False},
    ),
    "26B-A4B": (
        "gemma4_text",
        {**_BASE, "enable_moe_block": True, "num_experts": 8}
        | {"top_k_experts": 2, "moe_intermediate_size": 24},
    ),
    "31B": ("gemma4_text", _BASE),
    "12B": ("gemma4_unified_text", {**_BASE, **_SHARING}),
    "3n": (
        "gemma3n_text",
        {**TINY_MODELS["gemma3_text"], **_SHARING, **_LOOKUPS}
        | {"num_hidden_layers": 4, "layer_types": _BASE["layer_types"]}
        | {"intermediate_size": [64] * 4, "laurel_rank": 4}
        | {"activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}
        | {"max_position_embeddings": 512},
    ),
}

NATIVE_KINDS = ["31B", "E2B", "26B-A4B"]


def save(kind: str, folder: Path, **changes: Any) -> Path:
    """Save a tiny model; none of its norms, scales and factors are 1."""
    model_type, fields = KINDS[kind]
    config = AutoConfig.for_model(model_type, **{**fields, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, numbers in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith(("scalar", ".scale", "expert_scale")):
                numbers.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        *((kind, "torch") for kind in KINDS if kind != "31B"),
        *((kind, "native") for kind in NATIVE_KINDS),
    ],
)
def test_alone_in_batches_in_chunks_preempted_and_behind_a_known_prefix(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    kernels: Literal["torch", "native"],
) -> None:
    if kernels == "native":
        request.getfixturevalue("needs_kernels")
    folder = save(kind, tmp_path)
    oracle = load_oracle(AutoModelForCausalLM, folder, "cpu")
    config = ModelConfig(device="cpu", kernels=kernels)
    model = Tiny(folder, load_model(folder, config, name="tiny"), oracle)
    planner = Planner(model.loaded, num_blocks=400, max_model_len=400)
    alone = planner.begin(make_prompt(300))
    planner.run(alone, num_tokens=6)
    others = [
        planner.begin(make_prompt(5), slot=1),
        planner.begin(make_prompt(70), slot=2),
    ]
    hit = planner.begin(
        make_prompt(300) + make_prompt(40, 1), slot=3, shared=alone.block_ids[:60]
    )
    planner.run(alone, *others, hit, num_tokens=9, chunk=17)
    planner.preempt(others[1], slot=4)
    planner.run(alone, *others, hit, num_tokens=14, chunk=17)
    model.check(alone, *others, hit)


def test_layers_that_share_keys_have_no_cache_of_their_own(tmp_path: Path) -> None:
    model = load_model(save("E2B", tmp_path), CPU, name="tiny")
    assert [layer.shares for layer in model.layers] == [None, None, 0, 1]
    # Two heads, a layer of each width, keys and values in float32.
    assert model.info.kv_bytes_per_token == 2 * (16 + 32) * 2 * 4


@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_the_configuration_alone_tells_that_the_kernels_run_it(
    tmp_path: Path, needs_kernels: None, kind: str
) -> None:
    assert preview_model(save(kind, tmp_path), CPU).no_kernels is None


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, "every layer looks up the tokens again"),
        (
            {"hidden_size_per_layer_input": 0},
            "read the keys and values of earlier ones",
        ),
    ],
)
def test_a_pipeline_is_refused(
    tmp_path: Path, changes: dict[str, int], reason: str
) -> None:
    folder = save("E2B", tmp_path, **changes)
    place = StagePlace(stage=0, num_stages=2)
    with pytest.raises(InvalidConfig, match=f"cut into stages: .*{reason}"):
        load_stage(folder, CPU, name="x", place=place)
