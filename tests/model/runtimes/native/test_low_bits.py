"""Quantised weights stay as they are on a CPU, and give the tokens of dequantised ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from torch import Tensor

from trioserve.config import ModelConfig
from trioserve.errors import UnsupportedQuantization, WeightsBroken
from trioserve.kernels.library import open_library
from trioserve.kernels.structs import MatrixSpec
from trioserve.model.loading.load import load_model
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.model.runtimes.native.packer import Packer
from trioserve.model.runtimes.stored_weights import StoredLinear, find_stored_experts
from trioserve.model.self_check.compare import measure_distance
from trioserve.model.self_check.steps import make_tables
from trioserve.testing.models import make_tiny_model, save_tiny_model

from ...checkpoints import (
    FORMATS,
    GPTQ,
    KEPT,
    KEPT_EXPERTS,
    KEPT_GROUP,
    Format,
    by_gptq,
    make_tiny_mixture,
    put_experts,
    save_kept,
)
from ...conftest import make_oracle
from ...planning import Planner, make_prompt
from ...quantising import Tensors, change_config, quantise

pytestmark = pytest.mark.usefixtures("needs_kernels")

WHOLE_NUMBERS = [name for name, (_, format) in KEPT.items() if format != "fp8"]


def load(folder: Path, **options: Any) -> LoadedModel:
    config = ModelConfig(device="cpu", **{"dtype": "float32", **options})
    return load_model(folder, config, name="tiny")


def check_tokens(loaded: LoadedModel, model: Any) -> None:
    planner = Planner(loaded)
    prompt = make_prompt(12)
    sequence = planner.begin(prompt)
    planner.run(sequence, num_tokens=4, chunk=5)
    make_oracle(model).check(sequence.outputs, input_ids=torch.tensor([prompt]))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[MatrixSpec]:
    """The matrices that are packed."""
    specs: list[MatrixSpec] = []
    pack = Packer.pack

    def record(*args: Any, **options: Any) -> MatrixSpec:
        specs.append(pack(*args, **options))
        return specs[-1]

    monkeypatch.setattr(Packer, "pack", record)
    return specs


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_a_checkpoint_gives_the_tokens_of_its_dequantised_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level("INFO", "trioserve")
    checkpoint, format = KEPT[name]
    model, meant = save_kept(tmp_path, checkpoint)
    loaded = load(tmp_path)
    assert loaded.info.kernels == f"native {open_library().name}"
    assert f"quantised weights stay as they are: {format}" in caplog.messages
    kept = [each for each in loaded.model.modules() if isinstance(each, StoredLinear)]
    assert len(kept) == len(meant) == 7
    assert not any(each.stored for each in kept)
    check_tokens(loaded, model)

    # Adapters read the weights back.
    name = "model.layers.0.mlp.down_proj"
    tables = make_tables([[1]], 8, loaded.device)
    assert loaded.native is not None
    layers = loaded.native.open(tables, num_blocks=1)
    actual = layers.adapters.read(name)
    torch.testing.assert_close(actual, meant[f"{name}.weight"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["mxfp4", "gptq"])
def test_experts_give_the_tokens_of_dequantised_ones(tmp_path: Path, name: str) -> None:
    model_type, checkpoint, ending, _ = KEPT_EXPERTS[name]
    model = make_tiny_mixture(model_type)
    model.save_pretrained(tmp_path)
    put_experts(model, quantise(tmp_path, *checkpoint, ending=ending))
    loaded = load(tmp_path)
    assert loaded.info.kernels == f"native {open_library().name}"
    assert not any(find_stored_experts(each) for each in loaded.model.modules())
    check_tokens(loaded, model)


def test_only_the_product_that_expands_latents_is_dequantised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels absorb it into others. A load compares them with the modules."""
    caplog.set_level("INFO", "trioserve")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 32, "v_head_dim": 8}
    folder = save_tiny_model("deepseek_v3", tmp_path / "model", **sizes, **ranks)
    meant = quantise(folder, *KEPT["W4A16"][0])
    loaded = load(folder)
    assert loaded.info.kernels == f"native {open_library().name}"
    assert "quantised weights stay as they are: int4" in caplog.messages
    modules = dict(loaded.model.named_modules())
    plain = {
        name
        for name in meant
        if ".experts." not in name
        and not isinstance(modules[name.removesuffix(".weight")], StoredLinear)
    }
    assert plain == {f"model.layers.{i}.self_attn.kv_b_proj.weight" for i in range(2)}


@pytest.mark.parametrize("plain", ["gate_proj", "experts.0", "experts.1.down_proj"])
def test_experts_of_which_some_are_numbers_are_dequantised(
    tmp_path: Path, plain: str
) -> None:
    model = make_tiny_mixture("qwen3_moe")
    model.save_pretrained(tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    _, checkpoint, ending, _ = KEPT_EXPERTS["gptq"]
    put_experts(model, quantise(tmp_path, *checkpoint, ending=ending))
    held = load_file(tmp_path / "model.safetensors")
    numbers = {
        name: weight
        for name, weight in before.items()
        if plain in name and ".experts." in name
    }
    modules = {name.removesuffix("weight") for name in numbers}
    kept = {
        name: each for name, each in held.items() if not name.startswith(tuple(modules))
    }
    save_file(kept | numbers, tmp_path / "model.safetensors", {"format": "pt"})
    put_experts(model, numbers)
    check_tokens(load(tmp_path), model)


def test_a_quantised_router_becomes_numbers(tmp_path: Path) -> None:
    """A load compares it with the modules."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "enable_moe_block": True}
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    model = make_tiny_model("gemma4_text", **sizes, **experts)
    model.save_pretrained(tmp_path)
    meant = quantise(tmp_path, *KEPT["W8A16"][0], ending="router.proj.weight")
    assert meant
    assert load(tmp_path).info.kernels == f"native {open_library().name}"


@pytest.mark.parametrize("size", [96, 256])
def test_weights_of_another_size_than_the_models_are_told(
    tmp_path: Path, size: int
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    folder = save_tiny_model("llama", tmp_path / "model", **sizes)
    quantise(folder, *KEPT["awq"][0])
    change_config(folder, intermediate_size=size)
    with pytest.raises(WeightsBroken, match="mlp.*_proj.weight"):
        load(folder)


def test_inputs_of_eight_bits_are_wanted_by_quantization_int8(
    tmp_path: Path, packed: list[MatrixSpec]
) -> None:
    """A load compares them with the modules."""
    save_kept(tmp_path, KEPT["awq"][0])
    loaded = load(tmp_path, quantization="int8")
    assert loaded.info.kernels == f"native {open_library().name} int8"
    # The head has no quantised weights in the file.
    assert [each.format for each in packed] == [3] * (len(packed) - 1) + [2]


def test_eight_bits_hold_codes_and_numbers_of_one_product(
    tmp_path: Path, packed: list[MatrixSpec]
) -> None:
    """A gate is in no quantised format, and groups of its numbers are as small as the codes'."""
    model = make_tiny_model("llama", hidden_size=64, intermediate_size=64)
    model.save_pretrained(tmp_path)
    meant = quantise(tmp_path, *KEPT["awq"][0], ending="up_proj.weight")
    model.load_state_dict(meant, strict=False)
    loaded = load(tmp_path, quantization="int8")
    assert [(each.format, each.group_size) for each in packed[2:4]] == [(2, 32)] * 2
    tables = make_tables([[1]], 8, loaded.device)
    assert loaded.native is not None
    adapters = loaded.native.open(tables, num_blocks=1).adapters
    for name in ("gate_proj", "up_proj"):
        name = f"model.layers.0.mlp.{name}"
        expected = model.get_submodule(name).weight.detach()
        assert measure_distance(expected, adapters.read(name)) < 0.01


def test_products_with_different_orders_of_inputs_are_numbers_together(
    tmp_path: Path, packed: list[MatrixSpec]
) -> None:
    seeds = iter(range(99))

    def quantise_one(weight: Tensor) -> tuple[Tensors, Tensor]:
        options: Any = {"is_shuffled": True, "group": KEPT_GROUP}
        return by_gptq(weight, order_seed=next(seeds), **options)

    model, _ = save_kept(tmp_path, ({**GPTQ, "desc_act": True}, quantise_one))
    loaded = load(tmp_path)
    formats = [(each.format, bool(each.columns)) for each in packed]
    # Queries, keys, values and the output of attention; the network's gate and numbers, and
    # its output.
    layer = [(5, True)] * 4 + [(0, False)] * 2 + [(5, True)]
    assert formats == [*layer, (0, False)]
    check_tokens(loaded, model)


def test_float16_becomes_bfloat16(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trioserve")
    save_kept(tmp_path, KEPT["awq"][0])
    change_config(tmp_path, dtype="float16")
    assert load(tmp_path, dtype="auto").info.dtype == "bfloat16"
    assert "weights run in bfloat16; config.json names float16" in caplog.text
    with pytest.raises(UnsupportedQuantization, match="float16.*--dequantize"):
        load(tmp_path, dtype="float16")


@pytest.mark.parametrize(
    "checkpoint",
    [FORMATS["modelopt"], FORMATS["NF4"], KEPT["FP8 by block"][0]],
    ids=["modelopt", "NF4", "FP8 by block"],
)
def test_what_the_kernels_do_not_read_is_dequantised_only_if_asked(
    tmp_path: Path, checkpoint: Format
) -> None:
    save_kept(tmp_path, checkpoint)
    with pytest.raises(UnsupportedQuantization, match="--dequantize"):
        load(tmp_path)


def test_a_model_that_the_kernels_do_not_run_is_dequantised_only_if_asked(
    tmp_path: Path,
) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "model")
    change_config(folder, quantization_config=GPTQ)
    with pytest.raises(UnsupportedQuantization, match="by gptq.*--dequantize"):
        load(folder)
