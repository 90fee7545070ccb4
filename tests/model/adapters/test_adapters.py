"""Rows with adapters get the tokens that peft computes, whatever stands beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
import shutil
from typing import Any

import pytest

from ..planning import Planner, make_prompt
from .trained import ATTENTION, IGNORED, Adapted, train

pytestmark = IGNORED

NETWORK = ["gate_proj", "up_proj", "down_proj"]

# Each field that changes the numbers, by the number of an adapter.
SETTINGS: dict[int, dict[str, Any]] = {
    1: {"r": 4, "lora_alpha": 16},
    2: {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": "all-linear"},
    3: {
        "r": 2,
        "target_modules": [*ATTENTION, *NETWORK],
        "rank_pattern": {"q_proj": 6, r"layers\.1\.mlp\.up_proj": 3},
        "alpha_pattern": {"down_proj": 32},
        "exclude_modules": ["layers.0.self_attn.v_proj"],
    },
    4: {"use_dora": True, "target_modules": ["q_proj", "down_proj", "lm_head"]},
    5: {"target_modules": r".*\.(k|up)_proj"},
    6: {"layers_to_transform": [1], "layers_pattern": "layers", "lora_alpha": 40},
}


@pytest.fixture(scope="module")
def adapted(
    tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Adapted:
    """Return tiny adapters of a tiny Llama."""
    folder = tmp_path_factory.mktemp("adapters")
    found = Adapted(tiny("llama").folder)
    for number, settings in SETTINGS.items():
        path = folder / str(number)
        found.adapters[number] = train(found.base, path, seed=number, **settings)
    return found


def test_each_field_computes_the_numbers_of_peft(
    tiny_by_kernels: Callable[..., Any], adapted: Adapted
) -> None:
    planner = Planner(tiny_by_kernels("llama").loaded)
    facts = {number: adapted.load(planner.runner, number) for number in SETTINGS}
    assert [each.rank for each in facts.values()] == [4, 8, 6, 8, 8, 8]
    assert len({each.digest for each in facts.values()}) == len(facts)
    prompt = make_prompt(9)
    sequences = [
        planner.begin(prompt, slot=slot, adapter=adapter)
        for slot, adapter in enumerate((0, *SETTINGS))
    ]
    planner.run(*sequences, num_tokens=8)
    adapted.check(*sequences)
    outputs = {tuple(each.outputs) for each in sequences}
    assert len(outputs) == len(sequences), "no adapter computes what another does"


def test_three_adapters_and_none_in_one_batch_in_chunks_after_preemption(
    tiny_by_kernels: Callable[..., Any], adapted: Adapted
) -> None:
    planner = Planner(tiny_by_kernels("llama").loaded)
    for number in (1, 2, 4):
        adapted.load(planner.runner, number)
    sequences = [
        planner.begin(make_prompt(length, length), slot=slot, adapter=adapter)
        for slot, (adapter, length) in enumerate(
            [(1, 20), (0, 9), (2, 13), (4, 5), (1, 6), (0, 17)]
        )
    ]
    planner.run(*sequences[:3], num_tokens=2, chunk=4)
    planner.run(*sequences, num_tokens=3, chunk=5)
    planner.preempt(sequences[0], slot=6)
    planner.preempt(sequences[3], slot=0)
    planner.run(*sequences, num_tokens=9, chunk=7)
    adapted.check(*sequences)


def test_a_prefix_of_the_same_adapter_is_read_and_not_computed_again(
    tiny: Callable[..., Any], adapted: Adapted
) -> None:
    planner = Planner(tiny("llama").loaded)
    adapted.load(planner.runner, 3)
    prefix = make_prompt(12)
    first = planner.begin(prefix + make_prompt(3, 1), slot=0, adapter=3)
    planner.run(first, num_tokens=3)
    second = planner.begin(
        prefix + make_prompt(4, 2), slot=1, adapter=3, shared=first.block_ids[:3]
    )
    planner.run(first, second, num_tokens=6)
    adapted.check(first, second)


def test_another_adapter_under_the_same_name_has_another_digest_and_output(
    tiny: Callable[..., Any], adapted: Adapted, tmp_path: Path
) -> None:
    planner = Planner(tiny("llama").loaded)
    path = tmp_path / "french"
    mine = Adapted(adapted.base, {7: path, 8: path})
    shutil.copytree(adapted.adapters[1], path)
    before = mine.load(planner.runner, 7)
    first = planner.begin(make_prompt(8), slot=0, adapter=7)
    planner.run(first, num_tokens=4)
    mine.check(first)
    shutil.rmtree(path)
    shutil.copytree(adapted.adapters[5], path)
    # Requests of the former content still run.
    after = mine.load(planner.runner, 8)
    assert before.digest != after.digest
    second = planner.begin(make_prompt(8), slot=1, adapter=8)
    planner.run(first, second, num_tokens=7)
    mine.check(first, second)
    planner.runner.remove_adapter(7)
    third = planner.begin(make_prompt(5), slot=0)
    planner.run(second, third, num_tokens=9)
    mine.check(second, third)


def test_modules_without_adapters_are_left_as_they_were(
    tiny: Callable[..., Any], adapted: Adapted
) -> None:
    model = tiny("llama").loaded
    planner = Planner(model)

    def count_hooks() -> Counter[str]:
        return Counter(
            {
                name: len(each._forward_hooks)
                for name, each in model.model.named_modules()
            }
        )

    # Those of other runners.
    before = count_hooks()
    adapted.load(planner.runner, 5)
    adapted.load(planner.runner, 6)
    added = count_hooks() - before
    assert sum(added.values()) == 2 * 2 + 3, "both adapt k_proj of layer 1"
    planner.runner.remove_adapter(5)
    layer = "model.layers.1.self_attn"
    assert {*(count_hooks() - before)} == {f"{layer}.{name}" for name in ATTENTION}
    planner.runner.remove_adapter(6)
    assert count_hooks() == before
