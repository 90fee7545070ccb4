"""Checkpoints of other tools are dequantised to the numbers that their authors meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch

from trioserve.config import ModelConfig
from trioserve.errors import UnsupportedQuantization, WeightsBroken
from trioserve.model.loading.dequantise import open_tensors
from trioserve.model.loading.files.config_file import find_weight_formats
from trioserve.model.loading.load import load_model
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import save_tiny_model
from trioserve.types.stage_place import StagePlace

from .checkpoints import AWQ, FORMATS, GPTQ, compressed
from .quantising import change_config, quantise
from .test_quantisation import FP8, quantise_to_fp8

CONFIG = ModelConfig(device="cpu", dtype="float32", kernels="torch", dequantize=True)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_the_numbers_that_were_meant(folder: Path, name: str) -> None:
    meant = quantise(folder, *FORMATS[name])
    formats = find_weight_formats(folder, CONFIG)
    assert formats and len(meant) == 14
    with open_tensors(folder, formats, torch.float32) as tensors:
        for each, numbers in meant.items():
            assert torch.equal(tensors[each][:], numbers), each


def test_other_weights_stay_and_the_stage_of_a_pipeline_has_its_own(
    folder: Path,
) -> None:
    before = load_file(folder / "model.safetensors")
    meant = quantise(folder, *FORMATS["gptq"])
    loaded = load_model(folder, CONFIG, name="tiny")
    stage = load_stage(
        folder, CONFIG, name="tiny", place=StagePlace(stage=1, num_stages=2)
    )
    assert loaded.info.eos_token_ids == stage.info.eos_token_ids
    for model in (loaded.model, stage.model):
        found = dict(model.named_parameters())
        for name in found.keys() & before.keys() - meant.keys():
            assert torch.equal(found[name], before[name])
    assert torch.equal(
        dict(stage.model.named_parameters())["model.layers.1.mlp.down_proj.weight"],
        meant["model.layers.1.mlp.down_proj.weight"],
    )


def test_the_type_is_the_checkpoints_own_and_native_kernels_run_it(
    folder: Path,
) -> None:
    quantise(folder, *FORMATS["awq"])
    change_config(folder, dtype="bfloat16")
    config = ModelConfig(device="cpu", dequantize=True)
    assert load_model(folder, config, name="tiny").info.dtype == "bfloat16"


@pytest.mark.parametrize("form", [FORMATS["W4A16"], (FP8, quantise_to_fp8)])
def test_experts_are_dequantised(tmp_path: Path, form: Any) -> None:
    folder = save_tiny_model("qwen3_moe", tmp_path / "model")
    meant = quantise(folder, *form)
    loaded = load_model(folder, CONFIG, name="tiny")
    experts = loaded.model.get_submodule("model.layers.0.mlp.experts")
    names = [f"model.layers.0.mlp.experts.{i}.down_proj.weight" for i in range(4)]
    assert torch.equal(experts.down_proj, torch.stack([meant[name] for name in names]))


@pytest.mark.parametrize("name", ["gptq", "awq", "W4A16", "modelopt"])
def test_without_the_option_it_is_named(folder: Path, name: str) -> None:
    settings, _ = FORMATS[name]
    (folder / "model.safetensors").unlink()
    change_config(folder, quantization_config=settings)
    expected = f"by {settings['quant_method']} are not computed with: --dequantize"
    with pytest.raises(UnsupportedQuantization, match=expected):
        load_model(folder, ModelConfig(device="cpu", kernels="torch"), name="tiny")


@pytest.mark.parametrize(
    "settings, detail",
    [
        ({**GPTQ, "bits": 3}, "3 bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "the format marlin"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "settings that differ"),
        ({**AWQ, "bits": 8}, "8 bits"),
        ({**AWQ, "version": "gemv"}, "the version gemv"),
        (
            compressed(
                "pack-quantized", config_groups={"a": {"weights": {"num_bits": 3}}}
            ),
            "3 bits",
        ),
        (compressed("nvfp4-pack-quantized"), "the format nvfp4-pack-quantized"),
        (compressed("dense", sparsity_config={"format": "marlin-24"}), "marlin-24"),
        (compressed("pack-quantized", transform_config={"a": 1}), "transformed"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "the algorithm NVFP4"),
    ],
)
def test_what_cannot_be_dequantised_is_named(
    folder: Path, settings: dict[str, Any], detail: str
) -> None:
    change_config(folder, quantization_config=settings)
    with pytest.raises(UnsupportedQuantization, match=detail):
        load_model(folder, CONFIG, name="tiny")


@pytest.mark.parametrize(
    "missing, detail", [("scales", "qweight"), ("qweight", "scales|qzeros")]
)
def test_a_part_that_lacks_is_told(folder: Path, missing: str, detail: str) -> None:
    quantise(folder, *FORMATS["gptq"])
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.0.mlp.down_proj.{missing}"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        WeightsBroken, match=f"down_proj.({detail}) lacks the tensors beside it"
    ):
        load_model(folder, CONFIG, name="tiny")


@pytest.mark.parametrize(
    "part, reason", [("g_idx", "g_idx names groups"), ("scales", "scales and zeros")]
)
def test_parts_that_do_not_fit_are_told(folder: Path, part: str, reason: str) -> None:
    quantise(folder, *FORMATS["gptq by act"])
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.0.mlp.down_proj.{part}"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsBroken, match=f"down_proj.weight: {reason}"):
        load_model(folder, CONFIG, name="tiny")
