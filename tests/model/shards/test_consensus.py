"""All processes that share layers run them on kernels, or none of them does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.kernels.library import NoKernels
from trioserve.model.loading import choose_runtime as native
from trioserve.model.runtimes.choice import NotRecognised, OutputDiffers
from trioserve.model.runtimes.consensus import agreeing, pack_together
from trioserve.model.shards.group import StageLost, TensorGroup
from trioserve.model.stages.loading import load_stage
from trioserve.types.stage_place import Shard, StagePlace

CPU = torch.device("cpu")
SHARDS = [Shard(index=index, count=2) for index in range(2)]


@pytest.fixture
def run_all(make_threads: Any) -> Callable[..., list[Any]]:
    """Run a call for each shard; returns results, or errors that say no to kernels."""

    def run(work: Callable[[TensorGroup], object]) -> list[Any]:
        groups = [TensorGroup(shard) for shard in SHARDS]

        def keep_error(index: int) -> object:
            try:
                return work(groups[index])
            except (NoKernels, NotRecognised, OutputDiffers) as error:
                return error

        return list(make_threads(groups).run(keep_error))

    return run


def refuse(group: TensorGroup, refusing: tuple[int, ...]) -> str:
    if group.shard.index in refusing:
        raise NotRecognised("not here")
    return "packed"


@pytest.mark.parametrize("refusing", [(), (0,), (1,), (0, 1)])
def test_one_refusal_is_the_refusal_of_all(run_all: Any, refusing: Any) -> None:
    def work(group: TensorGroup) -> str:
        with agreeing(group, CPU):
            return refuse(group, refusing)

    found = run_all(work)
    if not refusing:
        assert found == ["packed", "packed"]
        return
    assert [type(each) for each in found] == [NotRecognised] * 2
    for index, each in enumerate(found):
        assert ("not here" if index in refusing else "another process") in str(each)


@pytest.mark.parametrize("refusing", [(), (0,), (1,), (0, 1)])
def test_weights_that_some_have_packed_are_read_again_by_all(
    run_all: Any, refusing: Any
) -> None:
    def work(group: TensorGroup) -> str:
        return pack_together(partial(refuse, group, refusing), group, CPU)

    found = run_all(work)
    if not refusing:
        assert found == ["packed", "packed"]
        return
    kind = NotRecognised if len(refusing) == 2 else OutputDiffers
    assert [type(each) for each in found] == [kind] * 2


@pytest.mark.parametrize(
    ("name", "error"),
    [("open_library", NoKernels("none")), ("NativeDecoder", NotRecognised("no"))],
)
def test_shards_run_by_their_modules_if_one_of_them_has_no_kernels(
    split: Callable[..., Any],
    make_threads: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Exception,
) -> None:
    model = split("llama")
    groups = [TensorGroup(shard) for shard in SHARDS]
    threads = make_threads(groups)
    original = getattr(native, name)
    calls: list[None] = []

    def fail_once(*positional: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise error
        return original(*positional, **named)

    monkeypatch.setattr(native, name, fail_once)

    def load(index: int) -> Any:
        place = StagePlace(stage=0, num_stages=1, shard=SHARDS[index])
        config = ModelConfig(device="cpu")
        return load_stage(
            model.folder, config, name="tiny", place=place, group=groups[index]
        )

    loaded = threads.run(load)
    assert len(calls) == 2
    assert [each.info.kernels for each in loaded] == ["torch", "torch"]


def test_a_loss_of_another_process_is_no_failure_of_the_kernels(
    split: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be read again, and the other process would be awaited for a day."""
    place = StagePlace(stage=0, num_stages=1, shard=SHARDS[0])
    config = ModelConfig(device="cpu", kernels="torch")
    shard = load_stage(split("llama").folder, config, name="tiny", place=place)

    def lose(self: object, *others: object) -> None:
        raise StageLost("gone")

    class Layers:
        run = lose

    class Decoder:
        def open(self, *others: object, **named: object) -> Layers:
            return Layers()

    with pytest.raises(StageLost, match="gone"):
        native.make_decoder(shard, lambda parts: Decoder(), int8=False)  # type: ignore
