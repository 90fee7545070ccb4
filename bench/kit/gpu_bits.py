"""Checkpoints with weights of four bits, for bench/gpu.py."""

from __future__ import annotations

import json
from pathlib import Path
import shutil

from kit.gpu_parts import find_device
from safetensors import safe_open
from safetensors.torch import save_file
import torch
from torch import Tensor

_GROUP = 128


def save_int4(folder: Path) -> Path:
    """Save a model with random weights of four bits, as compressed-tensors writes them.

    Args:
      folder: of the model in 16 bits.

    Returns:
      a folder beside it
    """
    target = folder.with_name(f"{folder.name}-int4")
    if target.exists():
        return target
    target.mkdir()
    shutil.copy(folder / "tokenizer.json", target)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"]}},
    }
    (target / "config.json").write_text(json.dumps(config))
    held: dict[str, Tensor] = {}
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():
            if name.endswith("proj.weight"):
                module = name.removesuffix(".weight")
                for part, tensor in _draw(*tensors.get_slice(name).get_shape()).items():
                    held[f"{module}.{part}"] = tensor
            else:
                held[name] = tensors.get_tensor(name)
    save_file(held, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _draw(num_outputs: int, num_inputs: int) -> dict[str, Tensor]:
    """Draw the tensors of a weight, about as large as transformers' random ones."""
    words = torch.randint(
        *(-(2**31), 2**31, (num_outputs, num_inputs // 8)),
        device=find_device(),
        dtype=torch.int32,
    )
    scales = torch.full((num_outputs, num_inputs // _GROUP), 0.004)
    return {
        "weight_packed": words.cpu(),
        "weight_scale": scales.bfloat16(),
        "weight_shape": torch.tensor([num_outputs, num_inputs]),
    }
