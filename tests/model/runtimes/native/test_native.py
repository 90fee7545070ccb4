"""A model runs on the native kernels if they compute what its modules compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.kernels.library import open_library
from trioserve.model.loading import choose_runtime as native
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.recognise import norms as parts
from trioserve.model.self_check import compare
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import make_tiny_model, save_tiny_model
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import StagePlace

from ...planning import Planner, make_prompt

pytestmark = pytest.mark.usefixtures("needs_kernels")


def load(folder: Path, **options: Any) -> Any:
    return load_model(folder, ModelConfig(device="cpu", **options), name="tiny")


def test_auto_takes_native_kernels_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loaded = load(save_tiny_model("llama", tmp_path / "model"), num_threads=1)
    assert loaded.info.kernels == f"native {open_library().name}"
    assert f"kernels: {loaded.info.kernels}, 1 threads" in caplog.messages


def test_the_weights_of_products_are_not_held_twice(tmp_path: Path) -> None:
    loaded = load(save_tiny_model("llama", tmp_path / "model"))
    product = loaded.model.model.layers[0].self_attn.q_proj
    assert product.weight.shape == (32, 32)
    assert product.weight.untyped_storage().nbytes() == 4


def test_the_weights_of_experts_are_not_held_twice(tmp_path: Path) -> None:
    loaded = load(save_tiny_model("mixtral", tmp_path / "model"), kernels="native")
    experts = loaded.model.model.layers[0].mlp.experts
    for weights in (experts.gate_up_proj, experts.down_proj):
        assert len(weights) == 4
        assert weights.untyped_storage().nbytes() == 4


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_experts_in_bfloat16(tmp_path: Path, model_type: str) -> None:
    """A load compares them with the modules."""
    folder = save_tiny_model(model_type, tmp_path / "model")
    loaded = load(folder, kernels="native", dtype="bfloat16")
    assert loaded.info.kernels == f"native {open_library().name}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_with_biases_between_which_gates_are(
    tmp_path: Path, dtype: str
) -> None:
    """A load compares them with the modules."""
    model = make_tiny_model("gpt_oss")
    with torch.no_grad():
        for name, numbers in model.named_parameters():
            if name.endswith("bias"):
                numbers.normal_(std=2.0)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, kernels="native", dtype=dtype)
    assert loaded.info.kernels == f"native {open_library().name}"


def test_a_router_with_another_rule_is_not_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model("mixtral", tmp_path / "model")
    route = MixtralTopKRouter.forward

    def weigh(self: Any, states: torch.Tensor) -> Any:
        scores, weights, chosen = route(self, states)
        return scores, 2 * weights, chosen

    monkeypatch.setattr(MixtralTopKRouter, "forward", weigh)
    with pytest.raises(InvalidConfig, match="chooses experts by another rule"):
        load(folder, kernels="native")


@pytest.mark.parametrize("tolerance", [-1.0, float("nan")])
def test_a_model_whose_output_differs_runs_by_its_modules(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tiny: Callable[..., Any],
    tolerance: float,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(compare.TOLERANCES, torch.float32, tolerance)
    model = tiny("llama")
    loaded = load(model.folder)
    assert loaded.info.kernels == "torch"
    assert "kernels: torch, because its output would differ by" in caplog.text
    planner = Planner(loaded)
    sequence = planner.begin(make_prompt(9))
    planner.run(sequence, num_tokens=8)
    model.check(sequence)


@pytest.mark.parametrize(
    ("model_type", "options", "reason"),
    [
        ("gpt2", {}, "GPT2Model has no layers"),
        ("llama", {"dtype": "float16"}, "they have no float16"),
    ],
)
def test_native_is_refused_where_it_cannot_run(
    tmp_path: Path, model_type: str, options: dict[str, Any], reason: str
) -> None:
    folder = save_tiny_model(model_type, tmp_path / "model")
    with pytest.raises(InvalidConfig, match="native cannot be used") as caught:
        load(folder, kernels="native", **options)
    assert caught.value.field == "kernels"
    assert reason in str(caught.value)
    assert load(folder, **options).info.kernels == "torch"


def test_the_log_has_no_error_of_a_library(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("It seems like you tried to call `forward`")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(native, "find_parts", fail)
    folder = save_tiny_model("llama", tmp_path / "model")
    assert load(folder).info.kernels == "torch"
    reason = (
        "the model is built in a way that they do not know (ValueError in _find_parts)"
    )
    assert f"kernels: torch, because {reason}" in caplog.messages
    assert "It seems like" not in caplog.text


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_whose_output_differs_runs_by_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    """Its weights are read again."""
    folder = save_tiny_model("llama", tmp_path)
    config = ModelConfig(device="cpu")

    def load_one() -> Any:
        return load_stage(
            folder, config, name="tiny", place=StagePlace(stage=stage, num_stages=2)
        )

    assert load_one().info.kernels == f"native {open_library().name}"
    monkeypatch.setitem(compare.TOLERANCES, torch.float32, -1.0)
    loaded = load_one()
    assert loaded.native is None
    product = loaded.model.model.layers[stage].self_attn.o_proj
    assert product.weight.abs().sum() > 0


def test_mistakes_of_a_later_stage_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model("llama", tmp_path, num_hidden_layers=3)
    find_norm = parts.find_norm
    monkeypatch.setattr(parts, "find_norm", lambda *args: 1.1 * find_norm(*args))
    config = ModelConfig(device="cpu", kernels="native")
    for stage in range(3):
        with pytest.raises(InvalidConfig, match="its output would differ by 0"):
            load_stage(
                folder, config, name="tiny", place=StagePlace(stage=stage, num_stages=3)
            )


def test_int8_stays_near_the_weights_that_it_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distances = []

    measure = compare.measure_distance

    def record(*args: Any) -> float:
        distances.append(measure(*args))
        return distances[-1]

    monkeypatch.setattr(compare, "measure_distance", record)
    folder = save_tiny_model("llama", tmp_path / "model")
    loaded = load(folder, quantization="int8")
    assert loaded.info.kernels == f"native {open_library().name} int8"
    # 0.0 would be no quantisation.
    assert 1e-3 < distances[0] < 0.1


def test_int8_needs_a_model_that_the_kernels_run(tmp_path: Path) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "model")
    with pytest.raises(InvalidConfig, match="int8 needs native kernels: ") as caught:
        load(folder, quantization="int8")
    assert caught.value.field == "quantization"
    with pytest.raises(InvalidConfig, match="not --kernels torch"):
        ModelConfig(quantization="int8", kernels="torch")


class CountThreads(LogitsProcessor):
    """Records the threads that PyTorch has in a step."""

    name = "count-threads"
    counts: list[int] = []

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        self.counts.append(torch.get_num_threads())


@pytest.mark.parametrize(("kernels", "expected"), [("native", 1), ("torch", 2)])
def test_pytorch_takes_no_core_from_the_kernels(
    tmp_path: Path, kernels: str, expected: int
) -> None:
    before = torch.get_num_threads()
    folder = save_tiny_model("llama", tmp_path / "model")
    loaded = load(folder, kernels=kernels, num_threads=2)
    try:
        planner = Planner(loaded, logits_processors=(CountThreads,))
        sampling = SamplingParams(logits_processors=((CountThreads.name, {}),))
        CountThreads.counts.clear()
        planner.run(planner.begin([1, 2, 3], sampling=sampling), num_tokens=2)
        assert CountThreads.counts == [expected] * 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
