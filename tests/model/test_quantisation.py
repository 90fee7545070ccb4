"""Quantised weights are dequantised or refused, and never loaded as something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from torch import Tensor

from trioserve.config import ModelConfig, PoolingConfig
from trioserve.errors import UnsupportedQuantization
from trioserve.model.encoder import find_task
from trioserve.model.loading.load import load_model
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import save_tiny_model
from trioserve.types.stage_place import StagePlace

from .quantising import Tensors, change_config, quantise

BLOCK = 16
FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}
MXFP8 = {**FP8, "quant_method": "mxfp8", "weight_block_size": [1, 32]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}

# Source: Open Compute Project, Microscaling Formats 1.0, table 5.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def quantise_to_fp8(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Return a weight's tensors as a file holds them, and their dequantised values."""
    rows, columns = weight.shape
    blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = blocks.abs().amax(dim=(1, 3)) / 448
    rounded = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = rounded.float() * scales[:, None, :, None]
    held = {"weight": rounded.view(rows, columns), "weight_scale_inv": scales}
    return held, meant.view(rows, columns)


def quantise_to_mxfp8(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Like quantise_to_fp8; each scale is a power of two, in one byte."""
    rows, columns = weight.shape
    blocks = weight.view(rows, columns // 32, 32)
    exponents = (blocks.abs().amax(dim=2) / 448).log2().ceil()
    rounded = (blocks / exponents.exp2()[..., None]).to(torch.float8_e4m3fn)
    meant = rounded.float() * exponents.exp2()[..., None]
    scales = (exponents + 127).to(torch.uint8)
    held = {"weight": rounded.view(rows, columns), "weight_scale_inv": scales}
    return held, meant.view(rows, columns)


def quantise_to_mxfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Like quantise_to_fp8, with random values: (num_experts, inputs, outputs)."""
    num_experts, inputs, outputs = weight.shape
    generator = torch.Generator().manual_seed(outputs)
    shape = (num_experts, outputs, inputs // 32, 32)
    codes = torch.randint(16, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(120, 126, shape[:3], generator=generator, dtype=torch.uint8)
    pairs = codes[..., 0::2] | (codes[..., 1::2] << 4)
    meant = E2M1[codes.long()] * torch.exp2(scales.float() - 127)[..., None]
    held = {"_blocks": pairs, "_scales": scales}
    return held, meant.reshape(num_experts, outputs, inputs).transpose(1, 2)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_fp8_is_dequantised_with_a_word_about_it(
    folder: Path, dtype: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trioserve")
    meant = quantise(folder, FP8, quantise_to_fp8)
    config = ModelConfig(device="cpu", dtype=dtype, kernels="torch")
    loaded = load_model(folder, config, name="tiny")
    # The stage's weights are equal, but stay in transformers' layout.
    stage = load_stage(
        folder, config, name="tiny", place=StagePlace(stage=1, num_stages=2)
    )
    expected = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    for model, num_layers in ((loaded.model, 2), (stage.model, 1)):
        found = dict(model.named_parameters())
        assert {weight.dtype for weight in found.values()} == {expected}
        checked = [name for name in found if name.endswith("down_proj.weight")]
        assert len(checked) == num_layers
        for name in checked:
            weight = found[name]
            numbers = weight.to_dense() if weight.is_mkldnn else weight
            assert torch.equal(numbers, meant[name].to(expected))
    name = str(expected).removeprefix("torch.")
    words = f"weights quantised by fp8 are dequantised to {name} as they are read"
    assert caplog.text.count(words) == 2


def test_mxfp8_is_dequantised(folder: Path) -> None:
    meant = quantise(folder, MXFP8, quantise_to_mxfp8)
    config = ModelConfig(device="cpu", dtype="float16")
    found = dict(load_model(folder, config, name="tiny").model.named_parameters())
    for name, numbers in meant.items():
        if name in found:
            assert torch.equal(found[name], numbers.half())
    assert found.keys() & meant.keys()


def test_mxfp4_is_dequantised_with_a_word_about_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trioserve")
    folder = save_tiny_model("gpt_oss", tmp_path / "model")
    meant = quantise(folder, MXFP4, quantise_to_mxfp4, ending="proj")
    config = ModelConfig(device="cpu", dtype="bfloat16", kernels="torch")
    loaded = load_model(folder, config, name="tiny")
    found = dict(loaded.model.named_parameters())
    assert len(meant) == 4
    for name, numbers in meant.items():
        assert torch.equal(found[name], numbers.to(torch.bfloat16))
    assert "weights quantised by mxfp4 are dequantised to bfloat16" in caplog.text


def test_numbers_of_eight_bits_are_not_the_type_of_a_model_that_says_none(
    folder: Path,
) -> None:
    quantise(folder, FP8, quantise_to_fp8)
    change_config(folder, dtype=None)
    assert load_model(folder, ModelConfig(), name="tiny").dtype == torch.bfloat16


@pytest.mark.parametrize(
    "settings, method",
    [
        ({"quant_method": "torchao", "quant_type": {"default": {}}}, "torchao"),
        ({"quant_method": "hqq", "quant_config": {}}, "hqq"),
        ({"quant_method": "quanto", "weights": "int8"}, "quanto"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            "modelopt (the algorithm NVFP4)",
        ),
        ({"quant_method": "bitnet"}, "bitnet"),
        ({"quant_method": "aqlm"}, "aqlm"),
        ({"quant_method": "auto-round"}, "auto-round"),
        ({"quant_method": "nvfp4"}, "nvfp4"),
        ({"quant_method": "of\n tomorrow"}, "of tomorrow"),
        ({"bits": 3}, "an unknown method"),
        ("int8", "an unknown method"),
        ({}, "an unknown method"),
    ],
)
def test_all_else_is_refused_by_its_name_before_anything_is_read(
    folder: Path, settings: Any, method: str
) -> None:
    (folder / "model.safetensors").unlink()
    change_config(folder, quantization_config=settings)
    with pytest.raises(UnsupportedQuantization) as caught:
        load_model(folder, ModelConfig(), name="tiny")
    assert str(caught.value) == (
        f"weights that are quantised by {method} are not supported: take the "
        "unquantised model, or a GGUF file of it"
    )
    # Finding the task, which comes first, gives the same error.
    with pytest.raises(UnsupportedQuantization):
        find_task(folder, None, PoolingConfig())


def test_no_quantisation_is_none(folder: Path) -> None:
    change_config(folder, quantization_config=None)
    assert load_model(folder, ModelConfig(), name="tiny").dtype == torch.float32


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_the_part_that_writes_may_say_it(folder: Path, key: str) -> None:
    change_config(folder, text_config={key: {"quant_method": "compressed-tensors"}})
    with pytest.raises(UnsupportedQuantization, match="by compressed-tensors"):
        load_model(folder, ModelConfig(), name="tiny")


@pytest.mark.parametrize(
    "name, content, method",
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "version": "GEMM"}, "awq"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt"),
        # Only keys and values are quantised.
        ("hf_quant_config.json", {"quantization": {"quant_algo": None}}, None),
        # Written by an exporter to ONNX.
        ("quantize_config.json", {"modes": ["fp16", "q8"]}, None),
        ("quant_config.json", ["w_bit"], None),
    ],
)
def test_a_file_of_its_own_may_say_it(
    folder: Path, name: str, content: Any, method: str | None
) -> None:
    (folder / name).write_text(json.dumps(content))
    if method is None:
        load_model(folder, ModelConfig(), name="tiny")
        return
    with pytest.raises(UnsupportedQuantization, match=f"quantised by {method} are"):
        load_model(folder, ModelConfig(kernels="torch"), name="tiny")


def test_fp8_with_scales_under_unknown_names_is_refused(folder: Path) -> None:
    """Otherwise the weights would be used without a scale."""
    quantise(folder, {"quant_method": "fp8"}, quantise_to_fp8)
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("_scale_inv", "_factor"): value for name, value in tensors.items()
    }
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedQuantization, match="has no weight_scale_inv"):
        load_model(folder, ModelConfig(), name="tiny")
