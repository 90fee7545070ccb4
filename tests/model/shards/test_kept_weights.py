"""Shards and stages keep quantised weights on GPUs, and write what dequantised ones write.

Without a GPU, Triton's interpreter runs the kernels on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from interpreter import require_triton
import pytest

require_triton()

from trioserve.config import ModelConfig  # noqa: E402
from trioserve.model.loading.files.facts import read_facts  # noqa: E402
from trioserve.model.loading.load import load_model  # noqa: E402
from trioserve.model.runner import ModelRunner  # noqa: E402
from trioserve.model.runtimes.fused.decoder import FusedDecoder  # noqa: E402
from trioserve.model.runtimes.fused.low_bits import LowBitWeight  # noqa: E402
from trioserve.model.stages.loading import load_stage  # noqa: E402
from trioserve.model.stages.stage import LoadedStage  # noqa: E402
from trioserve.testing.models import make_tiny_model  # noqa: E402
from trioserve.types.sampling import SamplingParams  # noqa: E402
from trioserve.types.stage_place import Shard, StagePlace  # noqa: E402

from ..checkpoints import GPTQ, Format, by_gptq, by_packing, compressed  # noqa: E402
from ..quantising import quantise  # noqa: E402
from ..stages.conftest import make_pipeline  # noqa: E402, F401
from ..stages.test_pipeline import (  # noqa: E402
    SIZES as PIPELINE_SIZES,
    make_prompts,
    make_sequences,
    write_all,
)

# Inputs that share a scale.
GROUP = 32

# The interpreter takes its time.
SIZES = {**PIPELINE_SIZES, "max_num_seqs": 2, "max_model_len": 16}

MODEL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}

INT4: Format = (compressed("pack-quantized"), partial(by_packing, group=GROUP))
# The second shard of a product begins in the middle of a group.
INT8: Format = (
    compressed("pack-quantized"),
    partial(by_packing, bits=8, group=2 * GROUP),
)
BY_ACT: Format = (
    {**GPTQ, "desc_act": True},
    partial(by_gptq, is_shuffled=True, group=GROUP),
)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load on a CPU as on a GPU."""

    def choose(model: Any, config: ModelConfig) -> Any:
        return partial(FusedDecoder, group=model.tensor_group)

    def read(folder: Path, config: ModelConfig) -> Any:
        return replace(read_facts(folder, config), keeps_weights=True)

    # The interpreter takes its time, and test_low_bits.py tries all numbers of tokens.
    monkeypatch.setattr("trioserve.model.runtimes.fused.low_bits.SIZES", (1,))
    monkeypatch.setattr(
        "trioserve.model.runtimes.fused.low_bits.DEQUANTISED_TOKENS", 17
    )
    loading = "trioserve.model.loading"
    monkeypatch.setattr(f"{loading}.choose_runtime._choose_kernels", choose)
    monkeypatch.setattr(f"{loading}.load.read_facts", read)


def save(folder: Path, checkpoint: Format, **changes: Any) -> dict[int, list[int]]:
    """Save a quantised model; returns what it writes with dequantised weights."""
    model = make_tiny_model(changes.pop("model_type", "qwen2"), **(MODEL | changes))
    model.save_pretrained(folder)
    quantise(folder, *checkpoint)
    config = ModelConfig(
        device="cpu", dtype="float32", kernels="torch", dequantize=True
    )
    return write(ModelRunner(load_model(folder, config, name="tiny"), **SIZES))


def write(runner: Any) -> dict[int, list[int]]:
    sampling = SamplingParams(temperature=0.0, max_tokens=3)
    sequences = make_sequences(make_prompts()[:2], sampling=sampling)
    return write_all(runner.launch, sequences, depth=1)


def load_parts(
    folder: Path, places: list[StagePlace], *, dequantize: bool = True
) -> list[LoadedStage]:
    config = ModelConfig(
        device="cpu", dtype="float32", kernels="native", dequantize=dequantize
    )
    return [load_stage(folder, config, name="tiny", place=place) for place in places]


SHARDS = [
    StagePlace(stage=0, num_stages=1, shard=Shard(index=index, count=2))
    for index in range(2)
]
STAGES = [StagePlace(stage=stage, num_stages=2) for stage in range(2)]


def list_weights(model: LoadedStage) -> list[tuple[str, tuple[int, ...]]]:
    """Return the formats and shapes of a model's products, layer by layer."""
    decoder: Any = model.native
    bodies = [each.body for layer in decoder.weights for each in layer]
    weights = [each.weight for body in bodies for each in body.products]
    return [
        (
            weight.stored.format if isinstance(weight, LowBitWeight) else "plain",
            tuple(weight.shape),
        )
        for weight in weights
    ]


# Padding computes with what its memory held before; weights of eight bits are large.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize(
    "checkpoint, format",
    [(INT8, "int8"), pytest.param(INT4, "int4", marks=pytest.mark.matrix)],
)
def test_shards_keep_their_parts(
    on_a_gpu: None,
    tmp_path: Path,
    make_shards: Callable[..., Any],
    checkpoint: Format,
    format: str,
) -> None:
    expected = save(tmp_path, checkpoint)
    shards = make_shards(load_parts(tmp_path, SHARDS), **SIZES)
    shapes = [(64, 64), (64, 32), (64, 64), (64, 32)]
    for model in shards.models:
        assert list_weights(model) == [(format, shape) for shape in shapes]
        assert model.info.kernels == "native triton"
    assert write(shards) == expected


def test_a_part_that_cannot_be_cut_is_dequantised(
    on_a_gpu: None,
    tmp_path: Path,
    make_shards: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Inputs of some products are cut, and in the order of their activations."""
    caplog.set_level("INFO", "trioserve")
    expected = save(tmp_path, BY_ACT)
    shards = make_shards(load_parts(tmp_path, SHARDS), **SIZES)
    for model in shards.models:
        assert [kind for kind, _ in list_weights(model)] == ["int4", "plain"] * 2
    assert "2 weights are dequantised, such as" in caplog.text
    assert "down_proj.weight, which has inputs that follow" in caplog.text
    assert write(shards) == expected


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("checkpoint", [INT4, INT8, BY_ACT])
def test_shards_on_cpus_keep_their_parts(
    tmp_path: Path,
    make_shards: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    checkpoint: Format,
) -> None:
    caplog.set_level("INFO", "trioserve")
    expected = save(tmp_path, checkpoint)
    shards = make_shards(load_parts(tmp_path, SHARDS, dequantize=False), **SIZES)
    assert caplog.text.count("quantised weights stay as they are: int") == 2
    assert write(shards) == expected


def test_shards_keep_their_parts_of_experts(
    on_a_gpu: None, tmp_path: Path, make_shards: Callable[..., Any]
) -> None:
    expected = save(
        tmp_path, INT4, model_type="qwen3_moe", moe_intermediate_size=2 * GROUP
    )
    shards = make_shards(load_parts(tmp_path, SHARDS), **SIZES)
    for model in shards.models:
        decoder: Any = model.native
        for layer in decoder.weights:
            experts = layer[-1].body.experts
            assert (experts.first.format, experts.second.format) == ("int4", "int4")
    assert write(shards) == expected


def test_stages_keep_the_weights_of_their_layers(
    on_a_gpu: None, tmp_path: Path, make_pipeline: Callable[..., Any]  # noqa: F811
) -> None:
    expected = save(tmp_path, INT4, num_hidden_layers=2)
    stages = load_parts(tmp_path, STAGES)
    for stage in stages:
        assert [kind for kind, _ in list_weights(stage)] == ["int4"] * 4
    assert write(make_pipeline(tuple(stages), **SIZES)) == expected


def test_shards_dequantise_if_kernels_compute_something_else(
    on_a_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_shards: Callable[..., Any],
) -> None:
    monkeypatch.setattr(
        "trioserve.model.loading.choose_runtime.compare_decoders",
        lambda *args, **options: "its output would differ",
    )
    expected = save(tmp_path, INT4)
    config = ModelConfig(device="cpu", dtype="float32", dequantize=True)
    models = [
        load_stage(tmp_path, config, name="tiny", place=place) for place in SHARDS
    ]
    assert [model.native for model in models] == [None, None]
    assert write(make_shards(models, **SIZES)) == expected
