"""Adapters of experts and of routers compute on Triton's kernels what peft computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest
from torch import Tensor

from trioserve.errors import InvalidAdapter

from ...adapters.trained import (
    DOWN,
    EXPERTS,
    IGNORED_EXPERTS,
    Adapted,
    train,
    write_modules,
)
from ...planning import Planner, make_prompt
from .graphs import DEVICE, GRAPHS, load

require_triton()

from trioserve.kernels.triton import experts  # noqa: E402

pytestmark = IGNORED_EXPERTS

# The number of an adapter with modules for each expert.
MODULES = 4


def train_all(base: Path, folder: Path) -> Adapted:
    """Make adapters of both weights, of one, of a router, and of modules."""
    found = Adapted(base)
    for number, settings in EXPERTS.items():
        path = folder / str(number)
        found.adapters[number] = train(base, path, seed=number, **settings)
    if "mixtral" in base.name:
        home = "block_sparse_moe.experts"
        names = {"w1": (home, 64, 32), "w2": (home, 32, 64), "w3": (home, 64, 32)}
        path = write_modules(base, folder / "modules", names, target_modules=[*names])
        found.adapters[MODULES] = path
    return found


# The gates of Mixtral's experts come in front of what they weigh; those of gpt-oss between, and
# there are biases; Qwen has an expert for all tokens, too.
@pytest.mark.parametrize(
    "model_type",
    ["mixtral", "gpt_oss", pytest.param("qwen2_moe", marks=pytest.mark.matrix)],
)
def test_adapters_of_experts_and_none_in_one_batch(
    tiny: Callable[..., Any], tmp_path: Path, model_type: str
) -> None:
    model = tiny(model_type, DEVICE)
    adapted = train_all(model.folder, tmp_path)
    planner = Planner(load(model))
    for number in adapted.adapters:
        adapted.load(planner.runner, number)
    sequences = [
        planner.begin(make_prompt(4, slot), slot=slot, adapter=number)
        for slot, number in enumerate((0, *adapted.adapters))
    ]
    planner.step(*((each, 3) for each in sequences))
    planner.run(*sequences, num_tokens=2)
    adapted.check(*sequences)


# Padding computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_steps_without_adapters_of_experts_keep_their_graphs(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny("qwen3_moe", DEVICE)
    path = train(model.folder, tmp_path / "1", seed=1, **EXPERTS[1])
    adapted = Adapted(model.folder, {1: path})
    planner = Planner(load(model), max_num_seqs=2, max_model_len=8)
    begin = len(GRAPHS)
    planner.runner.warm_up()
    adapted.load(planner.runner, 1)
    sequences = [
        planner.begin(make_prompt(3, slot), slot=slot, adapter=1 - slot)
        for slot in (0, 1)
    ]
    planner.run(sequences[1], num_tokens=3)
    replays = [each.num_replays for each in GRAPHS[begin:]]
    assert replays == [0, 2, 0, 0], "two graphs without adapters, and two with them"
    planner.run(sequences[0], num_tokens=1)
    planner.step((sequences[0], 1), (sequences[1], 1))
    replays = [each.num_replays for each in GRAPHS[begin:]]
    assert replays == [0, 2, 1, 0]
    adapted.check(*sequences)


def test_kernels_that_fail_on_a_device_run_no_adapter(
    tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrink(given: Tensor, blocks: Any, changes: Any, *others: Any) -> Tensor:
        return given.new_zeros((1, others[1], changes.width))

    model = tiny("gpt_oss", DEVICE)
    path = train(
        model.folder, tmp_path / "1", target_modules=[], target_parameters=[DOWN]
    )
    adapted = Adapted(model.folder, {1: path})
    planner = Planner(load(model))
    monkeypatch.setattr(experts, "shrink", shrink)
    with pytest.raises(InvalidAdapter, match="output would differ.* --kernels torch"):
        adapted.load(planner.runner, 1)
