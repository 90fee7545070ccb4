"""Adapters of experts compute the tokens that peft computes."""

from __future__ import annotations

from collections.abc import Callable
import functools
import json
from pathlib import Path
import shutil
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from trioserve.errors import InvalidAdapter

from ..planning import Planner, make_prompt
from .trained import (
    DOWN,
    EXPERTS,
    GATE_UP,
    IGNORED_EXPERTS,
    Adapted,
    train,
    write_modules,
)

pytestmark = IGNORED_EXPERTS


@pytest.fixture(scope="module")
def adapted_experts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Path], Adapted]:
    """Train adapters of the experts of a model."""

    @functools.cache
    def train_all(base: Path) -> Adapted:
        folder = tmp_path_factory.mktemp("experts")
        return Adapted(
            base,
            {
                number: train(base, folder / str(number), seed=number, **each)
                for number, each in EXPERTS.items()
            },
        )

    return train_all


# The weights of experts have their outputs in front; and their inputs, with biases.
@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_three_adapters_of_experts_and_none_in_one_batch(
    tiny_by_kernels: Callable[..., Any],
    adapted_experts: Callable[[Path], Adapted],
    model_type: str,
) -> None:
    model = tiny_by_kernels(model_type)
    adapted = adapted_experts(model.folder)
    planner = Planner(model.loaded)
    for number in adapted.adapters:
        adapted.load(planner.runner, number)
    prompt = make_prompt(20)
    sequences = [
        planner.begin(prompt[:length], slot=slot, adapter=adapter)
        for slot, (adapter, length) in enumerate(
            [(1, 20), (0, 9), (2, 9), (3, 9), (1, 9)]
        )
    ]
    planner.run(*sequences[:3], num_tokens=2, chunk=4)
    planner.run(*sequences, num_tokens=7, chunk=5)
    adapted.check(*sequences)
    outputs = {tuple(each.outputs) for each in sequences}
    assert len(outputs) == len(sequences), "no adapter computes what another does"


MIXTRAL, QWEN = "block_sparse_moe", "mlp.experts"


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        (
            "mixtral",
            {
                "gate": (MIXTRAL, 4, 32),
                "w1": (f"{MIXTRAL}.experts", 64, 32),
                "w2": (f"{MIXTRAL}.experts", 32, 64),
                "w3": (f"{MIXTRAL}.experts", 64, 32),
            },
        ),
        (
            "qwen3_moe",
            {each: (QWEN, 32, 32) for each in ("gate_proj", "up_proj", "down_proj")},
        ),
        ("qwen3_moe", {"down_proj": (QWEN, 32, 32)}),
    ],
)
def test_experts_that_were_modules_when_their_adapter_was_trained(
    tiny_by_kernels: Callable[..., Any],
    tmp_path: Path,
    model_type: str,
    names: dict[str, tuple[str, int, int]],
) -> None:
    model = tiny_by_kernels(model_type)
    folder = write_modules(model.folder, tmp_path / "1", names, target_modules=[*names])
    adapted = Adapted(model.folder, {1: folder})
    planner = Planner(model.loaded)
    adapted.load(planner.runner, 1)
    sequences = [
        planner.begin(make_prompt(9, slot), slot=slot, adapter=adapter)
        for slot, adapter in enumerate((1, 0, 1))
    ]
    planner.run(*sequences, num_tokens=6)
    adapted.check(*sequences)


def test_an_older_peft_had_inputs_and_outputs_in_the_other_order(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny("mixtral")
    both = {"target_modules": [], "target_parameters": [GATE_UP, DOWN]}
    folder = train(model.folder, tmp_path / "1", r=3, **both)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    older = tmp_path / "2"
    shutil.copytree(folder, older)
    turned = {}
    for name, tensor in tensors.items():
        if "lora_A" in name:
            other = name.replace("lora_A", "lora_B")
            # (inputs, rank, experts), and (experts, rank, outputs)
            a = tensor.unflatten(0, (4, 3)).permute(2, 1, 0)
            b = tensors[other].unflatten(1, (3, 4)).permute(2, 1, 0)
            turned[name] = b.flatten(0, 1).contiguous()
            turned[other] = a.flatten(1).contiguous()
    save_file(turned, older / path.name)
    runner = Planner(model.loaded)
    Adapted(model.folder, {1: older}).load(runner.runner, 1)
    sequence = runner.begin(make_prompt(9), adapter=1)
    runner.run(sequence, num_tokens=6)
    Adapted(model.folder, {1: folder}).check(sequence)


def change(folder: Path, name: str, value: Any) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config[name] = value
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("target_parameters", [DOWN], "of 2 parameters of .*experts, but .* down_proj"),
        ("target_parameters", None, "target_parameters names none"),
        ("use_dora", True, "use_dora is not supported for .*experts"),
        ("r", 3, r"experts.*lora_A has the shape \(16, 32\)"),
        ("target_parameters", GATE_UP, "target_parameters"),
        ("peft_version", "0.18.1", "peft_version is 0.18.1, .* square"),
    ],
)
def test_adapters_of_experts_are_refused_by_the_name_of_the_field(
    tiny: Callable[..., Any], tmp_path: Path, field: str, value: Any, reason: str
) -> None:
    model = tiny("qwen3_moe")
    named = [DOWN] if field == "peft_version" else [GATE_UP, DOWN]
    both = {"target_modules": [], "target_parameters": named}
    folder = train(model.folder, tmp_path, r=4, **both)
    change(folder, field, value)
    with pytest.raises(InvalidAdapter, match=reason):
        Adapted(model.folder, {1: folder}).load(Planner(model.loaded).runner, 1)


def test_experts_of_another_model_are_refused(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    """An expert more than the model has, and one that target_modules does not name."""
    model = tiny("qwen3_moe")
    names = {"down_proj": (QWEN, 32, 32)}
    first = write_modules(
        model.folder, tmp_path / "1", names, target_modules=["up_proj"]
    )
    second = write_modules(
        model.folder, tmp_path / "2", names, 5, target_modules=["down_proj"]
    )
    adapted = Adapted(model.folder, {1: first, 2: second})
    runner = Planner(model.loaded).runner
    for number, reason in ((1, "target_modules does not"), (2, "belongs to no module")):
        with pytest.raises(InvalidAdapter, match=reason):
            adapted.load(runner, number)
