"""Checkpoints of other tools are dequantised to the numbers that their authors meant."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
import torch
from torch import Tensor

from trioserve.config import ModelConfig
from trioserve.errors import UnsupportedQuantization, WeightsBroken
from trioserve.model.loading.dequantise import open_tensors
from trioserve.model.loading.files.config_file import find_weight_formats
from trioserve.model.loading.load import load_model
from trioserve.model.stages.loading import load_stage
from trioserve.testing.models import save_tiny_model
from trioserve.types.stage_place import StagePlace

from .quantising import Tensors, change_config, quantise
from .test_quantisation import FP8, quantise_to_fp8

GROUP = 8
# No divisor of the sizes of the tiny models.
BLOCK = 12
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}


def draw(high: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=generator)


def pack(numbers: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Pack numbers of neighbouring columns, the first into the lowest bits.

    As quantisers do it: word by word, number by number.
    """
    count = 32 // bits
    order = order or tuple(range(count))
    rows, columns = numbers.shape
    words = torch.zeros(rows, -(-columns // count), dtype=torch.int64)
    for column in range(words.shape[1]):
        for place, source in enumerate(order):
            if column * count + source < columns:
                number = numbers[:, column * count + source]
                words[:, column] |= number.long() << (bits * place)
    # The same 32 bits, with a sign.
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def draw_scales(*shape: int) -> Tensor:
    # Powers of two times 3, so that products are exact in float32 and float16.
    return 3.0 * 2.0 ** -(draw(3, *shape, seed=5).float() + 6)


def by_gptq(
    weight: Tensor, *, bits: int = 4, is_shuffled: bool = False, offset: int = 1
) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    num_groups = num_inputs // GROUP
    numbers = draw(2**bits, num_inputs, num_outputs)
    # The first version stores a zero less one.
    zeros = draw(2**bits, num_groups, num_outputs, seed=1)
    scales = draw_scales(num_groups, num_outputs)
    groups = torch.arange(num_inputs) // GROUP
    if is_shuffled:
        groups = groups[torch.randperm(num_inputs)]
    held = {
        "qweight": pack(numbers.T, bits).T.contiguous(),
        "qzeros": pack(zeros, bits),
        "scales": scales.half(),
    }
    if is_shuffled:
        held["g_idx"] = groups.to(torch.int32)
    return held, ((numbers - zeros[groups] - offset) * scales[groups]).T


def by_awq(weight: Tensor) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    num_groups = num_inputs // GROUP
    numbers = draw(16, num_inputs, num_outputs)
    zeros = draw(16, num_groups, num_outputs, seed=1)
    scales = draw_scales(num_groups, num_outputs)
    # Source: order_map of WQLinear_GEMM.from_linear, AutoAWQ 0.2.
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    held = {
        "qweight": pack(numbers, 4, order),
        "qzeros": pack(zeros, 4, order),
        "scales": scales.half(),
    }
    groups = torch.arange(num_inputs) // GROUP
    return held, ((numbers - zeros[groups]) * scales[groups]).T


def by_packing(
    weight: Tensor, *, bits: int = 4, has_zeros: bool = False
) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    half = 2 ** (bits - 1)
    numbers = draw(2**bits, num_outputs, num_inputs)
    scales = draw_scales(num_outputs, num_inputs // GROUP)
    zeros = draw(2**bits, *scales.shape, seed=1) if has_zeros else None
    held = {
        "weight_packed": pack(numbers, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([num_outputs, num_inputs]),
    }
    groups = torch.arange(num_inputs) // GROUP
    if zeros is None:
        return held, (numbers - half) * scales[:, groups]
    held["weight_zero_point"] = pack(zeros.T, bits).T.contiguous()
    return held, (numbers - zeros[:, groups]) * scales[:, groups]


def by_float8(weight: Tensor, *, shape: tuple[int, ...] = ()) -> tuple[Tensors, Tensor]:
    numbers = (weight * 100).to(torch.float8_e4m3fn)
    scales = draw_scales(*(shape or (weight.shape[0], 1)))
    held = {
        "weight": numbers,
        "weight_scale": scales,
        "input_scale": torch.tensor([2.0]),
    }
    return held, numbers.float() * scales.reshape(-1, 1)


def by_float8_blocks(weight: Tensor) -> tuple[Tensors, Tensor]:
    """The last block of a row or column is smaller than the others."""
    numbers = (weight * 100).to(torch.float8_e4m3fn)
    rows, columns = (-(-count // BLOCK) for count in weight.shape)
    scales = draw_scales(rows, columns)
    held = {"weight": numbers, "weight_scale": scales}
    meant = numbers.float()
    for row in range(rows):
        for column in range(columns):
            begin, end = row * BLOCK, column * BLOCK
            meant[begin : begin + BLOCK, end : end + BLOCK] *= scales[row, column]
    return held, meant


def by_int8(weight: Tensor) -> tuple[Tensors, Tensor]:
    numbers = (draw(256, *weight.shape) - 128).to(torch.int8)
    scales = draw_scales(len(weight), 1)
    zeros = (draw(9, len(weight), 1, seed=1) - 4).to(torch.int8)
    held = {"weight": numbers, "weight_scale": scales, "weight_zero_point": zeros}
    return held, (numbers.float() - zeros.float()) * scales


def by_4_bits(weight: Tensor, *, is_nested: bool = True) -> tuple[Tensors, Tensor]:
    numbers = draw(16, weight.numel())
    quant_map = torch.linspace(-1, 1, 17)[:16]
    state: dict[str, Any] = {"quant_type": "nf4", "shape": list(weight.shape)}
    state |= {"blocksize": 64, "dtype": "float32"}
    num_blocks = weight.numel() // 64
    held = {
        "weight": (numbers[0::2] * 16 + numbers[1::2]).to(torch.uint8)[:, None],
        "weight.quant_map": quant_map,
    }
    if is_nested:
        codes = draw(256, num_blocks, seed=1)
        held["weight.absmax"] = codes.to(torch.uint8)
        held["weight.nested_absmax"] = draw_scales(-(-num_blocks // 256))
        held["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
        state |= {"nested_blocksize": 256, "nested_offset": 0.5}
        outer = held["weight.nested_absmax"].repeat_interleave(256)[:num_blocks]
        scales = held["weight.nested_quant_map"][codes] * outer + 0.5
    else:
        scales = held["weight.absmax"] = draw_scales(num_blocks)
    raw = json.dumps(state).encode()
    held["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(raw), dtype=torch.uint8
    )
    meant = quant_map[numbers].view(-1, 64) * scales[:, None]
    return held, meant.view(weight.shape)


def by_8_bits(weight: Tensor) -> tuple[Tensors, Tensor]:
    numbers = (draw(255, *weight.shape) - 127).to(torch.int8)
    scales = 127 * draw_scales(len(weight))
    held = {"weight": numbers, "SCB": scales, "weight_format": torch.tensor(0)}
    return held, numbers * (scales / 127)[:, None]


def compressed(form: str, **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"]}},
        **fields,
    }


CONFIG = ModelConfig(device="cpu", dtype="float32", kernels="torch", dequantize=True)

FORMATS: dict[
    str, tuple[dict[str, Any], Callable[[Tensor], tuple[Tensors, Tensor]]]
] = {
    "gptq": (GPTQ, by_gptq),
    "gptq of 2 bits": ({**GPTQ, "bits": 2}, lambda w: by_gptq(w, bits=2)),
    "gptq of 8 bits": ({**GPTQ, "bits": 8}, lambda w: by_gptq(w, bits=8)),
    "gptq by act": ({**GPTQ, "desc_act": True}, lambda w: by_gptq(w, is_shuffled=True)),
    "gptq_v2": (
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        lambda w: by_gptq(w, offset=0),
    ),
    "awq": (AWQ, by_awq),
    "W4A16": (compressed("pack-quantized"), by_packing),
    "W8A16": (compressed("pack-quantized"), lambda w: by_packing(w, bits=8)),
    "W4A16 with zeros": (
        compressed("pack-quantized"),
        lambda w: by_packing(w, has_zeros=True),
    ),
    "W8A8": (compressed("int-quantized"), by_int8),
    "FP8 by channel": (compressed("float-quantized"), by_float8),
    "FP8 by tensor": (
        compressed("float-quantized"),
        lambda w: by_float8(w, shape=(1,)),
    ),
    "FP8 by block": (
        compressed(
            "float-quantized",
            config_groups={"group_0": {"weights": {"block_structure": [BLOCK, BLOCK]}}},
        ),
        by_float8_blocks,
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        lambda w: by_float8(w, shape=(1,)),
    ),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, by_float8),
    "NF4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, by_4_bits),
    "NF4, plain scales": (
        {"quant_method": "bitsandbytes", "_load_in_4bit": True},
        lambda w: by_4_bits(w, is_nested=False),
    ),
    "LLM.int8": ({"load_in_8bit": True}, by_8_bits),
    "AutoFP8": ({"quant_method": "fp8"}, lambda w: by_float8(w, shape=(1,))),
}


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
        load_model(folder, ModelConfig(device="cpu"), name="tiny")


@pytest.mark.parametrize(
    "settings, detail",
    [
        ({**GPTQ, "bits": 3}, "3 bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "the format marlin"),
        ({**GPTQ, "dynamic": {"+:.*": {"bits": 8}}}, "settings that differ"),
        ({**AWQ, "bits": 8}, "8 bits"),
        ({**AWQ, "version": "gemv"}, "the version gemv"),
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
    with pytest.raises(WeightsBroken, match="down_proj"):
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
