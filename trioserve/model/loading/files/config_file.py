"""A model's config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from ....config import ModelConfig
from ....errors import (
    UnsupportedModel,
    UnsupportedQuantization,
    WeightsBroken,
    shorten_message,
)
from ..dequantise import WeightFormat
from ..dequantise.quantisation import check_quantisation, find_formats
from .faults import name_unreadable


def read_config(folder: Path) -> PreTrainedConfig:
    """Read the config.json of a model.

    Raises:
      WeightsBroken: the file cannot be read.
      UnsupportedModel: transformers does not know the type of the model.
      UnsupportedQuantization: the weights are quantised in a way that is not served.
    """
    described = _read_fields(folder)
    model_type = described.get("model_type", "(no model_type)")
    check_quantisation(folder, described)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True
        )
    except ValueError as error:
        # transformers raises the same error for an unknown type of model, for a type
        # that needs code of its own, and for values without sense.
        raise UnsupportedModel(str(model_type), shorten_message(error)) from None
    except Exception as error:
        # The constructor of a configuration may raise any error. The file is wrong.
        reason = name_unreadable(described) or shorten_message(error)
        raise WeightsBroken(str(folder), f"config.json: {reason}") from None
    return config


def find_weight_formats(
    folder: Path, config: ModelConfig, *, keeps: bool = False
) -> tuple[WeightFormat, ...] | None:
    """Return the formats of weights that dequantise/ reads; None if others read them.

    Args:
      keeps: the weights stay as they are.

    Raises:
      UnsupportedQuantization: there are such weights, they are not kept, and the user has
        not said --dequantize; or see read_config.
      WeightsBroken: config.json cannot be read.
    """
    found = find_formats(folder, _read_fields(folder), keeps=keeps)
    if found is None:
        return None
    method, formats = found
    if not config.dequantize and not keeps:
        raise UnsupportedQuantization(method, can_dequantize=True)
    return formats


def are_kept(folder: Path, config: ModelConfig, device: torch.device) -> bool:
    """Return whether weights are quantised, and the kernels of a device read such weights.

    Raises: the errors of read_config.
    """
    if not config.wants_native or config.dequantize:
        return False
    is_cpu = device.type == "cpu"
    # Kernels for CPUs round inputs to eight bits, too, and weights that are numbers.
    if not (is_cpu or (device.type == "cuda" and config.quantization == "none")):
        return False
    found = find_formats(folder, _read_fields(folder), keeps=True)
    if found is None:
        return False
    return all(
        form.keep is not None and not (is_cpu and form.has_float8) for form in found[1]
    )


def check_dequantisation(folder: Path, config: ModelConfig, obstacle: str) -> None:
    """Refuse weights that cannot be kept, if they are not dequantised unasked.

    Args:
      obstacle: the reason why the kernels cannot run the model.

    Raises:
      UnsupportedQuantization
    """
    found = find_formats(folder, _read_fields(folder))
    if found is not None and not config.dequantize:
        raise UnsupportedQuantization(found[0], obstacle, can_dequantize=True)


def _read_fields(folder: Path) -> dict[str, Any]:
    try:
        fields = json.loads((folder / "config.json").read_text())
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise WeightsBroken(
            str(folder), f"config.json: {shorten_message(error)}"
        ) from None
    return fields
