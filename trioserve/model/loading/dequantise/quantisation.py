"""Quantised weights: kept, dequantised while they are read, or refused.

Kernels read most of the formats that dequantise/ knows. Where they do not run, the server
does not compute with such weights. Kinds that transformers itself dequantises on any
device are dequantised while they are read. So are formats that dequantise/ knows, with
--dequantize, because they take several times the memory that their user expects. All other
kinds are refused before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from . import NotDequantised, WeightFormat, find_format
from ....errors import UnsupportedQuantization, WeightsBroken
from .formats import FINE_FP8

# Their names in config.json; mxfp8 is fp8 with scales of one byte.
_DEQUANTISED = frozenset({"fp8", "mxfp8", "mxfp4"})

# Keys of config.json; older releases of compressed-tensors have the second one.
_KEYS = ("quantization_config", "compression_config")

# Kinds that config.json does not name: their own file, the keys that it must have, and the
# name of the kind. ONNX exporters write files of the same names with other keys.
_OWN_FILES = (
    ("hf_quant_config.json", ("quantization", "quant_algo"), "modelopt"),
    ("quantize_config.json", ("bits",), "gptq"),
    ("quant_config.json", ("w_bit",), "awq"),
)

# Endings of the names of scales, in place of the last part of an 8-bit weight's name.
# Source: FineGrainedFP8HfQuantizer.update_weight_conversions, transformers 5.23.
_SCALES = ("weight_scale_inv", "scale", "qscale_weight")


def check_quantisation(folder: Path, described: Mapping[str, Any]) -> None:
    """Refuse weights that cannot be read.

    Args:
      folder: in Hugging Face layout.
      described: the contents of config.json.

    Raises:
      UnsupportedQuantization
    """
    find_formats(folder, described)


def find_formats(
    folder: Path, described: Mapping[str, Any], *, keeps: bool = False
) -> tuple[str, tuple[WeightFormat, ...]] | None:
    """Return the kind of quantisation and its formats, if dequantise/ reads the weights.

    None if they are not quantised, or transformers dequantises them.

    Args:
      folder, described: as for check_quantisation.
      keeps: the weights shall be kept, which transformers would not do.

    Raises:
      UnsupportedQuantization: neither can dequantise them.
    """
    settings = _find_settings(folder, described)
    if settings is None:
        return None
    method = _name_method(settings)
    if method in _DEQUANTISED and (
        method == "mxfp4" or not _lack_scales(folder, method)
    ):
        if keeps and method == "fp8" and _can_keep_float8(folder):
            return method, find_format(FINE_FP8, settings)
        if keeps and method == "mxfp4":
            return method, find_format(method, settings)
        return None
    try:
        return method, find_format(method, settings)
    except NotDequantised as error:
        raise UnsupportedQuantization(method, str(error)) from None


def _find_settings(folder: Path, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a quantisation; None if there is none."""
    # A model that sees images may say so in the configuration of its text model.
    parts = [
        described,
        *(part for part in described.values() if isinstance(part, dict)),
    ]
    for part in parts:
        for key in _KEYS:
            if part.get(key) is not None:
                settings = part[key]
                return settings if isinstance(settings, dict) else {}
    return next(_read_own_files(folder), None)


def _name_method(settings: Mapping[str, Any]) -> str:
    if settings.get("load_in_8bit") or settings.get("load_in_4bit"):
        return "bitsandbytes"
    # On one line, even if the file has line breaks.
    return " ".join(str(settings.get("quant_method") or "an unknown method").split())


def _read_own_files(folder: Path) -> Iterator[dict[str, Any]]:
    for name, (*outer, key), method in _OWN_FILES:
        try:
            settings = json.loads((folder / name).read_text())
            for part in outer:
                settings = settings[part]
            is_quantised = bool(settings[key])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if is_quantised:
            yield {**settings, "quant_method": method}


def _lack_scales(folder: Path, method: str) -> bool:
    """Return whether transformers would find no scales of 8-bit weights, but dequantise/ would.

    transformers would use the weights without a scale. AutoFP8, an older tool of vLLM's
    users, has other names for scales, but names its kind fp8, too.

    Raises:
      UnsupportedQuantization: neither would find them.
      WeightsBroken: a file cannot be read.
    """
    lacks = False
    for shard in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(shard, framework="pt") as tensors:
                names = set(tensors.keys())
                lonely = [
                    name
                    for name in sorted(names)
                    if name.endswith("weight") and not _has_scale(name, names)
                    # This reads the header, not the tensor.
                    and tensors.get_slice(name).get_dtype().startswith("F8_E4M3")
                ]
        except (OSError, SafetensorError) as error:
            raise WeightsBroken(str(folder), f"{shard.name}: {error}") from None
        if any(f"{name}_scale" not in names for name in lonely):
            raise UnsupportedQuantization(
                method, f"{lonely[0]} has no weight_scale_inv"
            )
        lacks |= bool(lonely)
    return lacks


def _can_keep_float8(folder: Path) -> bool:
    """Return whether all 8-bit weights have the scales that most checkpoints have."""
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as tensors:
            names = set(tensors.keys())
            for name in names:
                has_scale = name.endswith(".weight") and f"{name}_scale_inv" in names
                if not has_scale and tensors.get_slice(name).get_dtype().startswith(
                    "F8_E4M3"
                ):
                    return False
    return True


def _has_scale(name: str, names: set[str]) -> bool:
    module = name.removesuffix("weight")
    return any(module + scale in names for scale in _SCALES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequantisation:
    """The dequantisation of a model's weights.

    Args:
      method: the kind of quantisation, by its name in config.json.
      config: the model's; transformers reads it in place of the file.
      dtype: type of the dequantised weights.
    """

    method: str
    config: PreTrainedConfig
    dtype: torch.dtype

    def finish(self, model: PreTrainedModel) -> None:
        """Convert all weights to one type.

        If some weights of a model are quantised, transformers 5.23 leaves the other
        weights in the type of their file.

        Raises:
          UnsupportedQuantization: transformers has left weights quantised.
        """
        kept = model._keep_in_fp32_modules_strict or ()
        for name, weight in model.named_parameters():
            if weight.dtype.itemsize == 1:
                raise UnsupportedQuantization(self.method, f"{name} was not recognised")
            if not any(f".{part}." in f".{name}." for part in kept):
                weight.data = weight.data.to(self.dtype)


def plan_dequantisation(
    config: PreTrainedConfig, dtype: torch.dtype | None
) -> Dequantisation | None:
    """Return the plan to dequantise a model's weights; None if they are not quantised.

    Args:
      config: the model's, which check_quantisation has accepted; it is changed.
      dtype: the wanted type; None is the checkpoint's own.
    """
    text_config = config.get_text_config(decoder=True)
    for part in (config, text_config):
        settings = getattr(part, "quantization_config", None)
        if settings is not None:
            # Otherwise, with a GPU, transformers would fetch kernels from its hub.
            settings["dequantize"] = True
            return Dequantisation(
                method=_name_method(settings),
                config=config,
                dtype=dtype or _find_dtype(config, text_config),
            )
    return None


def forget_quantisation(
    config: PreTrainedConfig, dtype: torch.dtype | None
) -> torch.dtype:
    """Describe a quantised model as one that never was.

    Args:
      config: the model's; it is changed.
      dtype: the wanted type; None is the checkpoint's own.

    Returns:
      the type of the weights
    """
    text_config = config.get_text_config(decoder=True)
    chosen = dtype or _find_dtype(config, text_config)
    for part in (config, text_config):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
        part.dtype = chosen
    return chosen


def _find_dtype(*configs: PreTrainedConfig) -> torch.dtype:
    """Return a checkpoint's own type of numbers.

    If config.json names none, transformers' "auto" would take the type of the first
    weight, which may have 8 bits.
    """
    for config in configs:
        if isinstance(config.dtype, torch.dtype):
            return config.dtype
    return torch.bfloat16
