"""Rows with adapters get the numbers that peft computes, on Triton's kernels."""

from __future__ import annotations

from collections.abc import Callable
import gc
from pathlib import Path
from typing import Any
import weakref

from interpreter import require_triton
import pytest

from trioserve.model.self_check.steps import make_check

from . import test_fused_states
from ...adapters.trained import ATTENTION, IGNORED, Adapted, train
from ...conftest import Tiny
from ...planning import Planner, make_prompt
from .graphs import DEVICE, GRAPHS, load

require_triton()

pytestmark = IGNORED

# Its fixture of models with states.
build = test_fused_states.build

# By the number of an adapter: magnitudes of products with biases, ranks that differ, a part of
# the joined modules, and the head.
SETTINGS: dict[int, dict[str, Any]] = {
    1: {"use_dora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    2: {
        "r": 3,
        "target_modules": [*ATTENTION, "gate_proj", "up_proj", "lm_head"],
        "rank_pattern": {"k_proj": 19},
    },
}


@pytest.fixture(scope="module")
def train_on(
    tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Adapted]:
    """Return tiny adapters of a tiny model."""

    def train_on(model_type: str) -> Adapted:
        folder = tmp_path_factory.mktemp("adapters")
        found = Adapted(tiny(model_type, DEVICE).folder)
        for number, settings in SETTINGS.items():
            path = folder / str(number)
            found.adapters[number] = train(found.base, path, seed=number, **settings)
        return found

    return train_on


def test_two_adapters_and_none_in_one_batch_in_chunks(
    tiny: Callable[..., Any], train_on: Callable[[str], Adapted]
) -> None:
    adapted = train_on("qwen2")
    planner = Planner(load(tiny("qwen2", DEVICE)))
    for number in SETTINGS:
        adapted.load(planner.runner, number)
    sequences = [
        planner.begin(make_prompt(4, slot), slot=slot, adapter=adapter)
        for slot, adapter in enumerate((2, 0, 1))
    ]
    planner.step(*((each, 3) for each in sequences))
    planner.step((sequences[2], 1), (sequences[0], 1), (sequences[1], 1))
    planner.run(*sequences, num_tokens=2)
    adapted.check(*sequences)


# Padding computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_graphs_run_all_adapters_and_are_captured_again_for_other_products(
    tiny: Callable[..., Any], train_on: Callable[[str], Adapted]
) -> None:
    adapted = train_on("llama")
    planner = Planner(load(tiny("llama", DEVICE)), max_num_seqs=2, max_model_len=8)
    begin = len(GRAPHS)
    planner.runner.warm_up()
    adapted.load(planner.runner, 1)
    sequences = [
        planner.begin(make_prompt(3, slot), slot=slot, adapter=slot) for slot in (0, 1)
    ]
    planner.run(*sequences, num_tokens=2)
    replays = [each.num_replays for each in GRAPHS[begin:]]
    assert replays == [0, 0, 1, 0], "two graphs without adapters, and two with them"
    adapted.load(planner.runner, 2)
    third = planner.begin(make_prompt(3, 2), slot=0, adapter=2)
    planner.run(third, num_tokens=1)
    planner.step((third, 1), (sequences[1], 1))
    adapted.check(*sequences, third)
    replays = [each.num_replays for each in GRAPHS[begin + 4 :]]
    assert replays == [1, 0], "both adapters run in one"
    planner.runner.remove_adapter(2)
    planner.run(sequences[1], num_tokens=4)
    adapted.check(sequences[1])


def test_the_memory_of_layers_is_free_without_the_garbage_collector(
    tiny: Callable[..., Any],
) -> None:
    loaded = load(tiny("qwen2", DEVICE))
    assert loaded.native is not None, "the kernels run it"
    tables, _ = make_check(loaded.info.vocab_size, loaded.device)
    layers = loaded.native.open(tables, num_blocks=1)
    held = weakref.ref(layers)
    gc.disable()
    try:
        del layers
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("model_type", "targets"),
    [
        pytest.param(*each, marks=pytest.mark.matrix)
        for each in (
            # Their outputs have factors behind the changes.
            ("falcon_h1", ["in_proj", "k_proj", "gate_proj", "down_proj"]),
            # Narrow numbers, and what is made of them.
            ("kimi_linear", ["b_proj", "f_a_proj", "f_b_proj", "g_b_proj"]),
        )
    ],
)
def test_adapters_change_products_of_states(
    build: Callable[[str], Tiny], tmp_path: Path, model_type: str, targets: list[str]
) -> None:
    model = build(model_type)
    adapted = Adapted(model.folder)
    adapted.adapters[1] = train(model.folder, tmp_path, target_modules=targets)
    planner = Planner(model.loaded)
    adapted.load(planner.runner, 1)
    sequences = [
        planner.begin(make_prompt(4, slot), slot=slot, adapter=slot) for slot in (0, 1)
    ]
    planner.step((sequences[0], 3), (sequences[1], 4))
    planner.run(*sequences, num_tokens=2)
    adapted.check(*sequences)
