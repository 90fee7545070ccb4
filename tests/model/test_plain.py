"""A plain Llama in a folder of safetensors is loaded without transformers, and the same."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.loading.load import load_model
from trioserve.model.loading.plain import check
from trioserve.model.loading.plain.description import read_plain_config
from trioserve.model.loading.plain.llama import load_plain, outline_plain
from trioserve.model.loading.plain.parts import compute_rotary
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.self_check import compare
from trioserve.testing.models import save_tiny_model

from .planning import Planner, compute_on_kernels, make_prompt

pytestmark = pytest.mark.usefixtures("needs_kernels")

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}

MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}

# config.json as transformers 4 wrote it; None removes a field.
OLD = {
    "dtype": None,
    "head_dim": None,
    "mlp_bias": None,
    "rope_parameters": None,
    "rope_scaling": "null",
    "rope_theta": 5000,
    "torch_dtype": "float32",
}


def load(folder: Path, **options: Any) -> LoadedModel | None:
    config = ModelConfig(device="cpu", **options)
    return load_plain(folder, config, name="tiny")


def change(folder: Path, **fields: object) -> None:
    """Set fields of config.json; None removes a field, and "null" is null."""
    path = folder / "config.json"
    described = json.loads(path.read_text()) | fields
    for key, value in fields.items():
        if value is None:
            described.pop(key, None)
    path.write_text(json.dumps(described).replace('"null"', "null"))


@pytest.mark.parametrize(
    ("model_type", "changes", "fields"),
    [
        ("llama", {"tie_word_embeddings": True}, {}),
        ("llama", {"tie_word_embeddings": False, "head_dim": 16}, {}),
        ("llama", {"rope_parameters": {**LLAMA_3, "rope_theta": 100.0}}, {}),
        ("llama", {}, {**OLD, "rope_scaling": LLAMA_3}),
        ("mistral", {"sliding_window": None, "rms_norm_eps": 0.1}, {}),
    ],
)
def test_the_output_is_that_of_transformers(
    tmp_path: Path, model_type: str, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    folder = save_tiny_model(model_type, tmp_path, **changes)
    change(folder, **fields)
    loaded = load(folder)
    assert loaded is not None
    planner = Planner(loaded)
    sequence = planner.begin(make_prompt(70))
    planner.run(sequence, num_tokens=12)
    reference = AutoModelForCausalLM.from_pretrained(folder)
    whole = torch.tensor([sequence.prompt + sequence.outputs])
    with torch.inference_mode():
        best = reference(whole).logits[0, 69:-1].argmax(dim=-1)
    assert sequence.outputs == best.tolist()


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, LLAMA_3])
def test_rotary_angles_are_those_of_transformers(
    folder: Path, rope: dict[str, Any]
) -> None:
    change(folder, rope_parameters={**rope, "rope_theta": 500000.0}, head_dim=8)
    plain = read_plain_config(folder)
    assert plain is not None
    config: Any = AutoConfig.from_pretrained(folder)
    positions = torch.arange(4096)
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    for actual, one in zip(compute_rotary(plain, len(positions)), expected):
        # An angle of 4,096 has a rounding error of 2e-4.
        torch.testing.assert_close(actual, one[0], rtol=0, atol=5e-4)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float32", {}),
        ("float32", {"quantization": "int8", "max_model_len": 2}),
        ("bfloat16", {}),
        ("bfloat16", {"dtype": "float32"}),
        ("float16", {"dtype": "float"}),
    ],
)
def test_the_kernels_have_the_weights_of_the_modules(
    tmp_path: Path, dtype: str, options: dict[str, Any]
) -> None:
    folder = save_tiny_model("llama", tmp_path, initializer_range=0.1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=20_000)
    (folder / "model.safetensors").unlink()
    assert len(list(folder.glob("*.safetensors"))) > 1
    loaded = load(folder, **options)
    assert loaded is not None
    other = load_model(folder, ModelConfig(device="cpu", **options), name="tiny")
    assert (loaded.info, loaded.layers) == (other.info, other.layers)
    assert loaded.dtype == other.dtype
    outline = outline_plain(folder, ModelConfig(device="cpu", **options))
    assert outline is not None
    assert outline.kv_bytes_per_token == other.info.kv_bytes_per_token
    assert outline.max_model_len == other.info.max_model_len
    # Rotary angles may differ in their last bit.
    torch.testing.assert_close(
        compute_on_kernels(loaded), compute_on_kernels(other), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        OLD,
        {**OLD, "rope_theta": None, "rope_scaling": None, "attention_bias": None},
        {**OLD, "num_key_value_heads": None, "rope_scaling": LLAMA_3},
        {"rope_parameters": {**LLAMA_3, "rope_theta": 500000.0}},
        {"tie_word_embeddings": None, "eos_token_id": None, "dtype": None},
        {"eos_token_id": [2, 3], "head_dim": "null", "num_key_value_heads": "null"},
        {"eos_token_id": "null", "pretraining_tp": None, "rope_interleaved": False},
        {**MISTRAL, "sliding_window": "null"},
        {**MISTRAL, **OLD, "sliding_window": "null", "rope_theta": None}
        | {"rope_scaling": None, "eos_token_id": None, "tie_word_embeddings": None},
    ],
)
def test_config_json_is_read_as_transformers_reads_it(
    folder: Path, fields: dict[str, Any]
) -> None:
    change(folder, **fields)
    config: Any = AutoConfig.from_pretrained(folder)
    plain = read_plain_config(folder)
    assert plain is not None
    assert [plain.architecture] == config.architectures
    dtype = None if config.dtype is None else str(config.dtype).removeprefix("torch.")
    assert plain.dtype == dtype
    for name in (
        *("head_dim", "hidden_size", "intermediate_size", "max_position_embeddings"),
        *("num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
        *("vocab_size", "eos_token_id", "rms_norm_eps", "tie_word_embeddings"),
    ):
        assert getattr(plain, name) == getattr(config, name), name
    rope = dict(config.rope_parameters)
    assert plain.rope_theta == rope.pop("rope_theta")
    is_scaled = rope.pop("rope_type") == "llama3"
    assert (plain.rope_scaling is not None) == is_scaled
    for name, value in rope.items():
        assert getattr(plain.rope_scaling, name) == value


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"attention_bias": True}, {}),
        ({"hidden_act": "gelu"}, {}),
        ({"a_field_of_tomorrow": 1}, {}),
        ({"quantization_config": {"quant_method": "fp8"}}, {}),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 2.0}}, {}),
        ({"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, {}),
        ({"rope_theta": 5000.0}, {}),
        ({"torch_dtype": "bfloat16"}, {}),
        ({"head_dim": 16}, {}),
        ({"num_hidden_layers": 1}, {}),
        ({"tie_word_embeddings": False}, {}),
        (MISTRAL, {}),
        ({"sliding_window": 8}, {}),
        ({"dtype": None}, {}),
        ({}, {"dtype": "float16"}),
        ({}, {"dtype": "half"}),
        ({}, {"dtype": "bfloat16"}),
        ({}, {"kernels": "torch"}),
    ],
)
def test_any_other_model_is_left_to_transformers(
    folder: Path, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    assert outline_plain(folder, ModelConfig(device="cpu")) is not None
    change(folder, **fields)
    assert load(folder, **options) is None


def add_bias(folder: Path) -> None:
    path = folder / "model.safetensors"
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}
    save_file(load_file(path) | bias, path)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    "spoil",
    [
        add_bias,
        truncate,
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
    ],
)
def test_other_files_are_left_to_transformers(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    assert load(folder) is None


def test_kernels_that_compute_something_else_are_left_to_transformers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = compare.measure_distance

    def record(*args: Any) -> float:
        measured.append(measure(*args))
        return 0.1

    monkeypatch.setattr(compare, "measure_distance", record)
    assert load(folder) is None
    assert load(folder, quantization="int8") is not None
    # 0.0 would be no quantisation.
    assert 0 < measured[0] < 1e-5 < 1e-3 < measured[1] < 0.1


@pytest.mark.parametrize("max_model_len", [1, 129])
def test_a_length_that_does_not_fit_is_refused(
    folder: Path, max_model_len: int
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(folder, max_model_len=max_model_len)
    assert caught.value.field == "max_model_len"


def test_a_generation_config_that_cannot_be_used_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(InvalidConfig, match="generation_config.json cannot be used"):
        outline_plain(folder, ModelConfig(device="cpu"))


def test_keys_and_values_in_eight_bits_are_compared_with_rounded_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distances: list[float] = []
    measure = compare.measure_distance

    def record(*args: Any) -> float:
        distances.append(measure(*args))
        return 0.0

    monkeypatch.setattr(compare, "measure_distance", record)
    model = load(folder, kv_cache_dtype="int8")
    assert model is not None and model.kv_dtype == torch.int8
    assert model.info.kv_bytes_per_token == 2 * 2 * 2 * (8 + 4)
    monkeypatch.setattr(check, "round_trip", torch.Tensor.float)
    load(folder, kv_cache_dtype="int8")
    rounded, exact = distances
    assert rounded < min(exact / 4, 2e-3)
