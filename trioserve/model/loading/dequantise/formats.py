"""The quantised checkpoints that can be dequantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.stored import StoredWeights, store
from .keep import keep_codes, keep_mxfp4, keep_scaled
from .packing import WHOLE_BITS
from .restore import (
    AWQ_BITS,
    Codes,
    Nested,
    read_awq,
    read_gptq,
    read_packed,
    restore_4_bits,
    restore_8_bits,
    restore_scaled,
)

Parts = Mapping[str, Tensor]

# FP8 as DeepSeek and transformers write it, in blocks. config.json says "fp8", too.
FINE_FP8 = "fine-grained fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """The form of one weight in the files of a checkpoint.

    Args:
      required: last parts of the names of the tensors that replace the weight.
      optional: of tensors that may be there, too.
      restore: returns the weight, (outputs, inputs).
      keep: returns the weight as kernels read it, on the device of its parts; it may raise
        NotStored. None if they read no such weights.
      has_float8: its numbers are FP8, which kernels for CPUs do not read.
      name: last part of the weight's own name.
    """

    required: frozenset[str]
    optional: frozenset[str]
    restore: Callable[[Parts], Tensor]
    keep: Callable[[Parts], StoredWeights] | None = None
    has_float8: bool = False
    name: str = "weight"

    @property
    def names(self) -> frozenset[str]:
        return self.required | self.optional


def _of_codes(
    required: set[str], optional: set[str], read: Callable[[Parts], Codes]
) -> WeightFormat:
    """Return the format of weights that are whole numbers."""
    return WeightFormat(
        required=frozenset(required),
        optional=frozenset(optional),
        restore=lambda parts: read(parts).restore(),
        keep=lambda parts: keep_codes(read(parts)),
    )


class NotDequantised(ValueError):
    """A kind of quantisation that is not dequantised here."""


def find_format(method: str, settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    """Return the formats that the weights of a checkpoint may have.

    Args:
      method: the name of the kind of quantisation.
      settings: of config.json, or of the kind's own file.

    Raises:
      NotDequantised: with the reason; it is empty if the whole method is unknown here.
    """
    find = _FINDERS.get(method)
    if find is None:
        raise NotDequantised("")
    return find(settings)


def _find_gptq(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    bits = settings.get("bits")
    if bits not in WHOLE_BITS:
        raise NotDequantised(f"{bits} bits")
    # Source: FORMAT in gptqmodel/quantization/config.py of GPTQModel. The other formats
    # are for one kernel each.
    version = settings.get("checkpoint_format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise NotDequantised(f"the format {version}")
    if settings.get("dynamic"):
        raise NotDequantised("settings that differ between modules")

    def read(parts: Parts) -> Codes:
        return read_gptq(
            parts["qweight"],
            parts["qzeros"],
            parts["scales"],
            parts.get("g_idx"),
            bits=bits,
            zero_offset=1 if version == "gptq" else 0,
        )

    return (_of_codes({"qweight", "qzeros", "scales"}, {"g_idx"}, read),)


def _find_awq(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    bits = settings.get("bits", settings.get("w_bit"))
    if bits != AWQ_BITS:
        raise NotDequantised(f"{bits} bits")
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise NotDequantised(f"the version {version}")
    return (
        _of_codes(
            {"qweight", "qzeros", "scales"},
            set(),
            lambda parts: read_awq(parts["qweight"], parts["qzeros"], parts["scales"]),
        ),
    )


_PACKED = _of_codes(
    {"weight_packed", "weight_scale", "weight_shape"},
    {"weight_zero_point", "weight_g_idx"},
    lambda parts: read_packed(
        parts["weight_packed"],
        parts["weight_scale"],
        parts["weight_shape"],
        parts.get("weight_zero_point"),
        parts.get("weight_g_idx"),
    ),
)


def _scaled(
    block: tuple[int, int] | None = None,
    scale: str = "weight_scale",
    *,
    has_float8: bool = True,
    rounds_inputs: bool = True,
) -> WeightFormat:
    """Return the format of weights of eight bits.

    Args:
      block: outputs and inputs that share a scale; None if the sizes tell.
      scale: the name of scales.
      rounds_inputs: inputs had eight bits, too, when the checkpoint was made.
    """

    def list_parts(parts: Parts) -> tuple[Any, ...]:
        return parts["weight"], parts[scale], parts.get("weight_zero_point"), block

    return WeightFormat(
        required=frozenset({"weight", scale}),
        # Scales of inputs that were measured when the checkpoint was made would cut off larger
        # inputs. Where inputs have eight bits here, each token has a scale of its own, which
        # takes a pass over it that is needed anyway. So these are not used.
        optional=frozenset({"weight_zero_point", "input_scale", "input_zero_point"}),
        restore=lambda parts: restore_scaled(*list_parts(parts)),
        keep=lambda parts: keep_scaled(*list_parts(parts), rounds_inputs=rounds_inputs),
        has_float8=has_float8,
    )


# Source: CompressionFormat in config/base.py of compressed-tensors 0.20.
_SCALED_NAMES = frozenset({"float-quantized", "int-quantized", "naive-quantized"})


def _find_compressed(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    if settings.get("transform_config"):
        raise NotDequantised("transformed weights")
    sparsity = settings.get("sparsity_config") or {}
    if sparsity.get("format", "dense") != "dense":
        raise NotDequantised(f"the format {sparsity['format']}")
    groups = list((settings.get("config_groups") or {}).values())
    whole = settings.get("format")
    names = {group.get("format") or whole for group in groups} or {whole}
    for name in names - _SCALED_NAMES - {"pack-quantized"}:
        raise NotDequantised(f"the format {name}")
    weights = [group.get("weights") or {} for group in groups]
    blocks = {tuple(each.get("block_structure") or ()) for each in weights} - {()}
    if len(blocks) > 1:
        raise NotDequantised("blocks of several sizes")
    for each in weights:
        if (bits := each.get("num_bits") or 8) not in WHOLE_BITS:
            raise NotDequantised(f"{bits} bits")
    rows, columns = next(iter(blocks), (0, 0))
    scaled = _scaled(
        (int(rows), int(columns)) if rows else None,
        has_float8="float-quantized" in names
        or any(each.get("type") == "float" for each in weights),
        rounds_inputs=all(_has_float8_inputs(group) for group in groups),
    )
    return (_PACKED,) * ("pack-quantized" in names) + (scaled,) * bool(
        names & _SCALED_NAMES
    )


def _has_float8_inputs(group: Mapping[str, Any]) -> bool:
    inputs = group.get("input_activations") or {}
    return inputs.get("num_bits") == 8 and inputs.get("type") == "float"


def _find_modelopt(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    algorithm = settings.get("quant_algo")
    if algorithm != "FP8":
        raise NotDequantised(f"the algorithm {algorithm}")
    return (_scaled(),)


def _find_scaled(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    return (_scaled(),)


def _find_fine_fp8(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    rows, columns = settings.get("weight_block_size") or (0, 0)
    block = (int(rows), int(columns)) if rows else None
    # Inputs have eight bits in both of its activation schemes, dynamic and static.
    return (_scaled(block, "weight_scale_inv"),)


def _find_mxfp4(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    return tuple(map(_of_experts, ("gate_up_proj", "down_proj")))


def _of_experts(name: str) -> WeightFormat:
    """Return the format of gpt-oss's experts."""

    def keep(parts: Parts) -> StoredWeights:
        return keep_mxfp4(parts[f"{name}_blocks"], parts[f"{name}_scales"])

    def restore(parts: Parts) -> Tensor:
        weights = keep(parts).restore(torch.float32)
        num_experts = len(parts[f"{name}_scales"])
        return weights.view(num_experts, -1, weights.shape[1]).transpose(1, 2)

    return WeightFormat(
        required=frozenset({f"{name}_blocks", f"{name}_scales"}),
        optional=frozenset(),
        restore=restore,
        keep=keep,
        name=name,
    )


def _find_bitsandbytes(settings: Mapping[str, Any]) -> tuple[WeightFormat, ...]:
    if not settings.get("load_in_4bit", settings.get("_load_in_4bit")):
        return (_EIGHT_BITS,)
    return (_four_bits("nf4"), _four_bits("fp4"))


def _four_bits(kind: str) -> WeightFormat:
    state = f"weight.quant_state.bitsandbytes__{kind}"
    nested = frozenset({"weight.nested_absmax", "weight.nested_quant_map"})

    def restore(parts: Parts) -> Tensor:
        return restore_4_bits(
            parts["weight"],
            parts["weight.absmax"],
            parts["weight.quant_map"],
            parts[state],
            (
                Nested(parts["weight.nested_absmax"], parts["weight.nested_quant_map"])
                if nested <= parts.keys()
                else None
            ),
        )

    return WeightFormat(
        required=frozenset({"weight", "weight.absmax", "weight.quant_map", state}),
        optional=nested,
        restore=restore,
    )


_EIGHT_BITS = WeightFormat(
    required=frozenset({"weight", "SCB"}),
    optional=frozenset({"weight_format"}),
    restore=lambda parts: restore_8_bits(parts["weight"], parts["SCB"]),
    keep=lambda parts: store(
        parts["weight"], parts["SCB"].float()[:, None] / 127, format="int8", group=0
    ),
)


_FINDERS: dict[str, Callable[[Mapping[str, Any]], tuple[WeightFormat, ...]]] = {
    "gptq": _find_gptq,
    "awq": _find_awq,
    "compressed-tensors": _find_compressed,
    "bitsandbytes": _find_bitsandbytes,
    "modelopt": _find_modelopt,
    "fbgemm_fp8": _find_scaled,
    # Of AutoFP8, an older tool of vLLM's users. transformers dequantises newer ones.
    "fp8": _find_scaled,
    FINE_FP8: _find_fine_fp8,
    "mxfp4": _find_mxfp4,
}
