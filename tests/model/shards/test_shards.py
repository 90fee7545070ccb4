"""Shards write the same as the whole model, token for token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from interpreter import require_triton
import pytest
from safetensors.torch import load_file, save_file
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.loading.load import load_model
from trioserve.model.runner import ModelRunner
from trioserve.model.shards.weights import PartialWeight
from trioserve.model.stages.loading import load_stage, outline_stage
from trioserve.model.stages.stage import LoadedStage
from trioserve.testing.models import TINY_MODELS, save_tiny_model
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import Shard, StagePlace

from ..stages.test_pipeline import (
    SIZES as PIPELINE_SIZES,
    end_one,
    make_prompts,
    make_sequences,
    write_all,
    write_whole,
)
from ..test_launching import SOME, answer_all, assert_same

SIZES = {**PIPELINE_SIZES, "max_model_len": 64}

CPU = ModelConfig(device="cpu", kernels="torch")

# Three heads of keys for two shards.
UNEVEN = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}

# Gemma 4's E2B, whose layers share keys and look up the tokens, and its 26B-A4B.
SHARING = {"num_kv_shared_layers": 2, "attention_k_eq_v": False}
SHARING |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 131}
EXPERTS = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}
EXPERTS |= {"moe_intermediate_size": 24}

CASES: list[tuple[str, int, dict[str, Any], str]] = [
    ("llama", 2, UNEVEN, "torch"),
    # Two shards for each of two heads of keys.
    ("llama", 4, {}, "native"),
    ("gemma3_text", 2, {}, "native"),
    ("mixtral", 2, {}, "torch"),
    ("qwen2_moe", 2, {}, "native"),
    ("gpt2", 3, {}, "torch"),
    ("gpt_neox", 2, {}, "torch"),
]
MORE_CASES: list[tuple[str, int, dict[str, Any], str]] = [
    ("llama", 2, {}, "torch"),
    ("llama", 2, {}, "native"),
    ("llama", 2, UNEVEN, "native"),
    ("llama", 4, {}, "torch"),
    ("qwen2", 2, {}, "torch"),
    ("qwen2", 2, {}, "native"),
    ("qwen3", 2, {}, "torch"),
    ("qwen3", 2, {}, "native"),
    ("gpt2", 2, {}, "torch"),
    ("gemma2", 2, {}, "torch"),
    ("gemma2", 2, {}, "native"),
    ("gemma3_text", 2, {}, "torch"),
    ("mixtral", 2, {}, "native"),
    ("qwen2_moe", 2, {}, "torch"),
    ("gemma4_text", 2, {}, "torch"),
    ("gemma4_text", 2, SHARING, "torch"),
    ("gemma4_text", 2, EXPERTS, "torch"),
    ("qwen3_moe", 3, UNEVEN, "torch"),
    ("qwen3_moe", 3, UNEVEN, "native"),
]


@pytest.mark.parametrize(
    ("model_type", "count", "changes", "kernels"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.matrix) for case in MORE_CASES)],
)
def test_shards_write_what_the_whole_model_writes(
    split: Callable[..., Any],
    make_shards: Any,
    model_type: str,
    count: int,
    changes: dict[str, Any],
    kernels: str,
) -> None:
    model = split(model_type, **changes)
    shards = make_shards(model.shards(count, kernels), **SIZES)
    written = write_all(shards.launch, make_sequences(make_prompts()), depth=2)
    assert written == write_whole(model)


def test_a_sequence_without_a_token_left_ends_and_no_other(
    split: Callable[..., Any], make_shards: Any
) -> None:
    model = split("llama")
    shards = make_shards(model.shards(2), **SIZES)
    sequences = end_one(make_sequences(make_prompts()))
    written = write_all(shards.launch, sequences, depth=2)
    assert written == write_whole(model) | {2: [5]}


def test_one_shard_samples_for_all_and_logprobs_are_the_whole_models(
    split: Callable[..., Any], make_shards: Any
) -> None:
    model = split("llama")
    expected, _ = answer_all(model, SOME, depth=1, num_blocks=12)
    answers, num_preemptions = answer_all(
        model,
        SOME,
        depth=2,
        num_blocks=12,
        runner_type=lambda _, **settings: make_shards(model.shards(2), **settings),
    )
    assert num_preemptions > 0
    assert_same(answers, expected)


# Padding computes with what its memory held before.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "model_type", ["llama", pytest.param("gemma2", marks=pytest.mark.matrix)]
)
def test_kernels_for_gpus_add_up_the_shards(
    split: Callable[..., Any],
    make_shards: Any,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
) -> None:
    """Triton's interpreter runs them on a CPU, and graphs are calls of the same function."""
    require_triton()
    from trioserve.model.runtimes.fused.decoder import FusedDecoder

    def choose(model: Any, config: ModelConfig) -> Any:
        def capture(function: Callable[[], torch.Tensor]) -> Any:
            return SimpleNamespace(replay=function)

        return lambda parts: FusedDecoder(
            parts, lambda: capture, group=model.tensor_group
        )

    monkeypatch.setattr(
        "trioserve.model.loading.choose_runtime._choose_kernels", choose
    )
    model = split(model_type)
    # The interpreter takes its time.
    sizes = {**SIZES, "max_num_seqs": 2, "max_model_len": 16}
    sampling = SamplingParams(temperature=0.0, max_tokens=3)
    sequences = partial(make_sequences, make_prompts()[:2], sampling=sampling)
    expected = write_all(
        ModelRunner(model.loaded, **SIZES).launch, sequences(), depth=1
    )
    models = load_shards(model.folder, ModelConfig(device="cpu", kernels="native"))
    shards = make_shards(models, **sizes)
    assert shards.models[0].info.kernels == "native triton"
    shards.warm_up()
    assert write_all(shards.launch, sequences(), depth=1) == expected


def load_shards(folder: Path, config: ModelConfig) -> list[LoadedStage]:
    places = [
        StagePlace(stage=0, num_stages=1, shard=Shard(index=index, count=2))
        for index in range(2)
    ]
    return [load_stage(folder, config, name="tiny", place=place) for place in places]


def count_numbers(model: Any) -> int:
    return sum(weight.numel() for weight in model.model.parameters())


@pytest.mark.parametrize("model_type", ["llama", "mixtral", "gpt2"])
def test_a_shard_reads_its_part_of_the_weights_and_holds_its_part_of_the_cache(
    split: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, model_type: str
) -> None:
    """Files are read by slices, whatever transformers does with them later."""
    model = split(model_type)
    read = PartialWeight.__getitem__
    shares = []

    def watch(self: Any, index: Any) -> Any:
        part = read(self, index)
        numel = torch.Size(self._whole.get_shape()).numel()
        shares.append(part.numel() / numel)
        return part

    monkeypatch.setattr(PartialWeight, "__getitem__", watch)
    shards = load_shards(model.folder, CPU)
    # Biases of sums are whole at one shard and zeros at the other.
    split_shares = [share for share in shares if share < 1]
    assert len(split_shares) >= 10
    assert all(0.4 < share < 0.6 for share in split_shares)
    whole = count_numbers(model.loaded)
    # Norms, biases of sums, and the vectors of GPT-2's positions, are everywhere.
    assert whole <= sum(map(count_numbers, shards)) < 1.15 * whole
    kv_bytes = model.loaded.info.kv_bytes_per_token // 2
    assert [shard.info.kv_bytes_per_token for shard in shards] == [kv_bytes] * 2
    outline = outline_stage(model.folder, CPU, place=shards[1].place)
    assert outline is not None
    assert outline.kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("phi3", "its plan for tensor parallelism has the"),
        ("gpt_oss", "its plan for tensor parallelism"),
        ("deepseek_v3", "its plan .* leaves attention whole"),
    ],
)
def test_a_model_whose_plan_is_unknown_is_refused(
    tmp_path: Path, model_type: str, reason: str
) -> None:
    save_tiny_model(model_type, tmp_path)
    with pytest.raises(InvalidConfig, match=f"cannot be split: {reason}"):
        load_shards(tmp_path, CPU)


def test_files_that_hold_a_split_weight_in_another_form_are_refused(
    tmp_path: Path,
) -> None:
    """They hold queries, keys and values in one weight, and the model has three."""
    try:
        config = AutoConfig.for_model("sarvam_moe")
    except ValueError:
        pytest.skip("this version of transformers has no such model")
    config.update({**TINY_MODELS["mixtral"], "head_dim": 8, "num_experts": 4})
    config.update({"moe_intermediate_size": 16, "n_group": 1, "topk_group": 1})
    build: Any = AutoModelForCausalLM
    build.from_config(config).save_pretrained(tmp_path)
    reason = "cannot be split: its files hold .* in another form than the model"
    with pytest.raises(InvalidConfig, match=reason):
        load_shards(tmp_path, CPU)


def test_heads_that_cannot_be_shared_are_refused(split: Callable[..., Any]) -> None:
    with pytest.raises(
        InvalidConfig, match="3 processes cannot share 4 heads of queries and 2 heads"
    ):
        split("llama").shards(3)


def test_weights_without_a_type_in_the_configuration_keep_that_of_their_file(
    tmp_path: Path,
) -> None:
    save_tiny_model("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k: v.half() for k, v in load_file(path).items()}, path, {"format": "pt"})
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"dtype"', '"former_dtype"'))
    shard = load_shards(tmp_path, CPU)[0]
    assert shard.dtype == load_model(tmp_path, CPU, name="x").dtype == torch.float16
