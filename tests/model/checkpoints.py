"""Checkpoints of other tools, with random weights in their formats."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from trioserve.testing.models import make_tiny_model

from .quantising import Tensors, quantise

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
    weight: Tensor,
    *,
    bits: int = 4,
    is_shuffled: bool = False,
    offset: int = 1,
    group: int = GROUP,
    order_seed: int = 0,
) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    num_groups = num_inputs // group
    numbers = draw(2**bits, num_inputs, num_outputs)
    # The first version stores a zero less one.
    zeros = draw(2**bits, num_groups, num_outputs, seed=1)
    scales = draw_scales(num_groups, num_outputs)
    groups = torch.arange(num_inputs) // group
    if is_shuffled:
        # Products that read the same inputs have the same order.
        chance = torch.Generator().manual_seed(order_seed)
        groups = groups[torch.randperm(num_inputs, generator=chance)]
    held = {
        "qweight": pack(numbers.T, bits).T.contiguous(),
        "qzeros": pack(zeros, bits),
        "scales": scales.half(),
    }
    if is_shuffled:
        held["g_idx"] = groups.to(torch.int32)
    return held, ((numbers - zeros[groups] - offset) * scales[groups]).T


def by_awq(weight: Tensor, *, group: int = GROUP) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    num_groups = num_inputs // group
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
    groups = torch.arange(num_inputs) // group
    return held, ((numbers - zeros[groups]) * scales[groups]).T


def by_packing(
    weight: Tensor, *, bits: int = 4, has_zeros: bool = False, group: int = GROUP
) -> tuple[Tensors, Tensor]:
    num_outputs, num_inputs = weight.shape
    half = 2 ** (bits - 1)
    numbers = draw(2**bits, num_outputs, num_inputs)
    scales = draw_scales(num_outputs, num_inputs // group)
    zeros = draw(2**bits, *scales.shape, seed=1) if has_zeros else None
    held = {
        "weight_packed": pack(numbers, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([num_outputs, num_inputs]),
    }
    groups = torch.arange(num_inputs) // group
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


def by_float8_blocks(weight: Tensor, *, block: int = BLOCK) -> tuple[Tensors, Tensor]:
    """The last block of a row or column is smaller than the others."""
    numbers = (weight * 100).to(torch.float8_e4m3fn)
    rows, columns = (-(-count // block) for count in weight.shape)
    scales = draw_scales(rows, columns)
    held = {"weight": numbers, "weight_scale": scales}
    meant = numbers.float()
    for row in range(rows):
        for column in range(columns):
            begin, end = row * block, column * block
            meant[begin : begin + block, end : end + block] *= scales[row, column]
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


Format = tuple[dict[str, Any], Callable[[Tensor], tuple[Tensors, Tensor]]]

FORMATS: dict[str, Format] = {
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


# Checkpoints whose weights the kernels keep as they are.

# Inputs that share a scale, and outputs and inputs of a block.
KEPT_GROUP = 32

_KEPT_BLOCKS = {
    "config_groups": {"group_0": {"weights": {"block_structure": [KEPT_GROUP] * 2}}}
}


def by_fine_float8(weight: Tensor) -> tuple[Tensors, Tensor]:
    held, meant = by_float8_blocks(weight, block=KEPT_GROUP)
    return {"weight": held["weight"], "weight_scale_inv": held["weight_scale"]}, meant


# A checkpoint, and the format in which its weights are kept.
KEPT: dict[str, tuple[Format, str]] = {
    "gptq": ((GPTQ, lambda w: by_gptq(w, group=KEPT_GROUP)), "int4"),
    "gptq by act": (
        (
            {**GPTQ, "desc_act": True},
            lambda w: by_gptq(w, is_shuffled=True, group=KEPT_GROUP),
        ),
        "int4",
    ),
    "gptq of 8 bits": (
        ({**GPTQ, "bits": 8}, lambda w: by_gptq(w, bits=8, group=KEPT_GROUP)),
        "int8",
    ),
    "awq": ((AWQ, lambda w: by_awq(w, group=KEPT_GROUP)), "int4"),
    "W4A16": (
        (compressed("pack-quantized"), lambda w: by_packing(w, group=KEPT_GROUP)),
        "int4",
    ),
    "W8A16": (
        (
            compressed("pack-quantized"),
            lambda w: by_packing(w, bits=8, group=KEPT_GROUP),
        ),
        "int8",
    ),
    "W8A8": ((compressed("int-quantized"), by_int8), "int8"),
    "FP8 by channel": ((compressed("float-quantized"), by_float8), "fp8"),
    "FP8 by tensor": (
        (
            {"quant_method": "modelopt", "quant_algo": "FP8"},
            lambda w: by_float8(w, shape=(1,)),
        ),
        "fp8",
    ),
    "FP8 by block": (
        (
            compressed("float-quantized", **_KEPT_BLOCKS),
            lambda w: by_float8_blocks(w, block=KEPT_GROUP),
        ),
        "fp8",
    ),
    "fine-grained FP8": (
        (
            {"quant_method": "fp8", "weight_block_size": [KEPT_GROUP, KEPT_GROUP]},
            by_fine_float8,
        ),
        "fp8",
    ),
    "LLM.int8": (({"load_in_8bit": True}, by_8_bits), "int8"),
}


def by_mxfp4(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Return codes of chance for the experts of gpt-oss, whose weights have inputs first."""
    num_experts, num_inputs, num_outputs = weight.shape
    chance = torch.Generator().manual_seed(0)
    shape = num_experts, num_outputs, num_inputs // KEPT_GROUP
    codes = torch.randint(256, (*shape, 16), generator=chance, dtype=torch.uint8)
    scales = torch.randint(123, 126, shape, generator=chance, dtype=torch.uint8)
    meant = convert_moe_packed_tensors(codes, scales, dtype=torch.float32)
    return {"_blocks": codes, "_scales": scales}, meant


# A model, a checkpoint, the ends of the names of its quantised weights, and their format.
KEPT_EXPERTS: dict[str, tuple[str, Format, str, str]] = {
    "mxfp4": ("gpt_oss", ({"quant_method": "mxfp4"}, by_mxfp4), "_proj", "mxfp4"),
    "gptq": (
        *("qwen2_moe", (GPTQ, lambda w: by_gptq(w, group=KEPT_GROUP))),
        *("proj.weight", "int4"),
    ),
    "fine-grained FP8": (
        "qwen3_moe",
        (
            {"quant_method": "fp8", "weight_block_size": [KEPT_GROUP, KEPT_GROUP]},
            by_fine_float8,
        ),
        "proj.weight",
        "fp8",
    ),
}


def save_kept(folder: Path, checkpoint: Format) -> tuple[Any, Tensors]:
    """Save a quantised model; returns it with the weights that were meant, and these."""
    # Biases, joined products, and inputs that fill no group of 128.
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    model = make_tiny_model("qwen2", **sizes)
    model.save_pretrained(folder)
    meant = quantise(folder, *checkpoint)
    model.load_state_dict(meant, strict=False)
    return model, meant


def make_tiny_mixture(model_type: str) -> Any:
    sizes_of_all = {"hidden_size": 64, "num_hidden_layers": 2}
    own = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
    sizes = {"intermediate_size": 64} if model_type == "gpt_oss" else own
    return make_tiny_model(model_type, **sizes_of_all, **sizes)


def put_experts(model: Any, meant: Tensors) -> None:
    """Give a model dequantised weights, by their names in the files."""
    parameters = dict(model.named_parameters())
    for name, weight in meant.items():
        head, dot, tail = name.partition(".experts.")
        number, _, part = tail.partition(".")
        if not dot or not number.isdecimal():
            parameters[name].data = weight
            continue
        part = part.removesuffix(".weight")
        first = parameters[f"{head}.experts.gate_up_proj"].data[int(number)]
        gate, up = first.chunk(2)
        second = parameters[f"{head}.experts.down_proj"].data[int(number)]
        {"gate_proj": gate, "up_proj": up, "down_proj": second}[part].copy_(weight)
