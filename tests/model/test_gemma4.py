"""Layers that read other layers' caches, or the tokens again, write what generate() writes."""

from __future__ import annotations

from collections.abc import Callable
import functools
import json
from pathlib import Path
import shutil
from typing import Any, Literal, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.loading.load import load_model
from trioserve.model.loading.preview import preview_model
from trioserve.model.runtimes.native.sums import NativeSums
from trioserve.model.shards.group import TensorGroup
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import TINY_MODELS
from trioserve.types.stage_place import StagePlace

from .conftest import Oracle, Tiny, make_oracle
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a folder, and transformers' model in it."""
    return functools.cache(lambda kind: save(kind, tmp_path_factory.mktemp("model")))


def save(
    kind: str, folder: Path, device: str = "cpu", **changes: Any
) -> tuple[Path, Oracle]:
    """Save a tiny model; none of its norms, scales and factors are 1."""
    model_type, fields = KINDS[kind]
    config = AutoConfig.for_model(model_type, **(fields | changes))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for name, numbers in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith(("scalar", ".scale", "expert_scale")):
                numbers.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder, make_oracle(model, device)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        *((kind, "torch") for kind in KINDS if kind != "31B"),
        *((kind, "native") for kind in ("31B", "E2B", "26B-A4B")),
    ],
)
def test_alone_in_batches_in_chunks_preempted_and_behind_a_known_prefix(
    saved: Callable[[str], Any],
    needs_kernels: None,
    kind: str,
    kernels: Literal["torch", "native"],
) -> None:
    folder, oracle = saved(kind)
    config = ModelConfig(device="cpu", kernels=kernels)
    model = Tiny(folder, load_model(folder, config, name="tiny"), oracle)
    planner = Planner(model.loaded, num_blocks=200, max_model_len=250)
    alone = planner.begin(make_prompt(150))
    planner.run(alone, num_tokens=3)
    others = [
        planner.begin(make_prompt(5), slot=1),
        planner.begin(make_prompt(50), slot=2),
    ]
    hit = planner.begin(
        make_prompt(150) + make_prompt(20, 1), slot=3, shared=alone.block_ids[:30]
    )
    planner.run(alone, *others, hit, num_tokens=5, chunk=17)
    planner.preempt(others[1], slot=4)
    planner.run(alone, *others, hit, num_tokens=8, chunk=25)
    model.check(alone, *others, hit)


def test_only_wanted_tokens_go_through_layers_that_share_keys(
    saved: Callable[[str], Any], needs_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sublayer adds something to each of its tokens; there are 3 in each layer."""
    config = ModelConfig(device="cpu", kernels="native")
    loaded: Any = load_model(saved("E2B")[0], config, name="tiny")
    counts: list[int] = []

    class Group:
        def sum(self, numbers: torch.Tensor) -> None:
            counts.append(len(numbers) // loaded.model.config.hidden_size)

    sums = NativeSums(cast(TensorGroup, Group()))
    monkeypatch.setattr(loaded.native, "_sums", sums)
    planner = Planner(loaded, max_num_seqs=2, max_model_len=32)
    long, short = planner.begin(make_prompt(20)), planner.begin(make_prompt(3), slot=1)
    planner.step((long, 9))
    assert counts == [9] * 3
    counts.clear()
    planner.step((long, 11), (short, 2))
    # The second of four layers is the last one that keeps keys.
    assert counts == [13] * 3 + [1] * 9
    counts.clear()
    planner.step((long, 1), (short, 1))
    assert counts == [2] * 12


def test_layers_that_share_keys_have_no_cache_of_their_own(
    saved: Callable[[str], Any],
) -> None:
    model = load_model(saved("E2B")[0], CPU, name="tiny")
    assert [layer.shares for layer in model.layers] == [None, None, 0, 1]
    # Two heads, a layer of each width, keys and values in float32.
    assert model.info.kv_bytes_per_token == 2 * (16 + 32) * 2 * 4


@pytest.mark.parametrize("kind", ["E2B", "26B-A4B"])
def test_the_configuration_alone_tells_that_the_kernels_run_it(
    saved: Callable[[str], Any], needs_kernels: None, kind: str
) -> None:
    assert preview_model(saved(kind)[0], CPU).no_kernels is None


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
    saved: Callable[[str], Any], tmp_path: Path, changes: dict[str, int], reason: str
) -> None:
    folder = shutil.copytree(saved("E2B")[0], tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    place = StagePlace(stage=0, num_stages=2)
    with pytest.raises(InvalidConfig, match=f"cut into stages: .*{reason}"):
        load_stage(folder, CPU, name="x", place=place)
