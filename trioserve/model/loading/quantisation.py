"""Which quantised weights are read, and how.

None is run as it is: that takes kernels which are fetched from a hub, or packages for one
kind of GPU each. What transformers dequantises by itself, on any device, is dequantised
while it is read; all else is refused before anything is read.
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

from ...errors import UnsupportedQuantization, WeightsBroken

# The names that config.json has for them; mxfp8 is fp8 with scales of one byte.
_DEQUANTISED = frozenset({"fp8", "mxfp8", "mxfp4"})

# Keys of config.json; the second is that of older releases of compressed-tensors.
_KEYS = ("quantization_config", "compression_config")

# Releases that say nothing in config.json: a file of their own, the keys that lead to what
# it says, and their name. ONNX exporters write files of these names with other keys.
_OWN_FILES = (
    ("hf_quant_config.json", ("quantization", "quant_algo"), "modelopt"),
    ("quantize_config.json", ("bits",), "gptq"),
    ("quant_config.json", ("w_bit",), "awq"),
)

# What may follow the name of an 8-bit weight, with or without its last part: its scale.
# Source: FineGrainedFP8HfQuantizer.update_weight_conversions, transformers 5.23.
_SCALES = ("weight_scale_inv", "scale", "qscale_weight")


def check_quantisation(folder: Path, described: Mapping[str, Any]) -> None:
    """Refuse weights that cannot be read.

    Args:
      folder: in Hugging Face layout.
      described: what config.json says.

    Raises:
      UnsupportedQuantization
    """
    method = _find_method(folder, described)
    if method is None:
        return
    if method not in _DEQUANTISED:
        raise UnsupportedQuantization(method)
    if method != "mxfp4":
        _check_scales(folder, method)


def _find_method(folder: Path, described: Mapping[str, Any]) -> str | None:
    """Return how weights are quantised, None if they are not."""
    # Models that see may say it of the part that writes.
    parts = [
        described,
        *(part for part in described.values() if isinstance(part, dict)),
    ]
    for part in parts:
        for key in _KEYS:
            if part.get(key) is not None:
                return _name_method(part[key])
    return next(_read_own_files(folder), None)


def _name_method(settings: object) -> str:
    if not isinstance(settings, dict):
        return "an unknown method"
    if settings.get("load_in_8bit") or settings.get("load_in_4bit"):
        return "bitsandbytes"
    # On one line, whatever the file says.
    return " ".join(str(settings.get("quant_method") or "an unknown method").split())


def _read_own_files(folder: Path) -> Iterator[str]:
    for name, keys, method in _OWN_FILES:
        try:
            value = json.loads((folder / name).read_text())
            for key in keys:
                value = value[key]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if value:
            yield method


def _check_scales(folder: Path, method: str) -> None:
    """Refuse 8-bit weights whose scales transformers would not find.

    It would take them for numbers without a scale. AutoFP8, which vLLM's users had for a
    while, calls its scales otherwise, and itself fp8 as well.
    """
    for shard in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(shard, framework="pt") as tensors:
                names = set(tensors.keys())
                lonely = [
                    name
                    for name in sorted(names)
                    if name.endswith("weight") and not _has_scale(name, names)
                    # Read from the header; no tensor is.
                    and tensors.get_slice(name).get_dtype().startswith("F8_E4M3")
                ]
        except (OSError, SafetensorError) as error:
            raise WeightsBroken(str(folder), f"{shard.name}: {error}") from None
        if lonely:
            raise UnsupportedQuantization(
                method, f"{lonely[0]} has no weight_scale_inv"
            )


def _has_scale(name: str, names: set[str]) -> bool:
    module = name.removesuffix("weight")
    return any(module + scale in names for scale in _SCALES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dequantisation:
    """How quantised weights become numbers.

    Args:
      method: config.json's name of it.
      config: the model's; transformers reads it in place of its file.
      dtype: of the numbers.
    """

    method: str
    config: PreTrainedConfig
    dtype: torch.dtype

    def finish(self, model: PreTrainedModel) -> None:
        """Bring all weights to one type.

        transformers 5.23 leaves weights that are not quantised in their file's type, if
        others of the model are.

        Raises:
          UnsupportedQuantization: it has left weights quantised.
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
    """Return how a model's weights are dequantised, None if they are as they should be.

    Args:
      config: the model's, of which check_quantisation has nothing to say; it is changed.
      dtype: that is asked for; None is the checkpoint's own.
    """
    text_config = config.get_text_config(decoder=True)
    for part in (config, text_config):
        settings = getattr(part, "quantization_config", None)
        if settings is not None:
            # Or transformers would fetch kernels from its hub, where there is a GPU.
            settings["dequantize"] = True
            return Dequantisation(
                method=_name_method(settings),
                config=config,
                dtype=dtype or _find_dtype(config, text_config),
            )
    return None


def _find_dtype(*configs: PreTrainedConfig) -> torch.dtype:
    """Return a checkpoint's own type of numbers.

    transformers' "auto" would take the type of the first weight, maybe of 8 bits, where
    config.json names none.
    """
    for config in configs:
        if isinstance(config.dtype, torch.dtype):
            return config.dtype
    return torch.bfloat16
