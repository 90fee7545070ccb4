"""Tiny models with quantised weights."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def quantise(
    folder: Path,
    settings: dict[str, Any],
    quantise_one: Callable[[Tensor], tuple[Tensors, Tensor]],
    *,
    ending: str = "proj.weight",
) -> Tensors:
    """Quantise weights of a folder by the ends of their names.

    Args:
      quantise_one: returns a weight's tensors as a file holds them, by the ends of their
        names behind the name of the module, and their dequantised values.

    Returns:
      the dequantised values, by the names of the weights
    """
    held: Tensors = {}
    meant: Tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith(ending):
            parts, meant[name] = quantise_one(weight)
            module = name.removesuffix("weight")
            held |= {module + last: part for last, part in parts.items()}
        else:
            held[name] = weight
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, quantization_config=settings)
    return meant
