"""Do the weights of a model fit into memory? Told before they are read."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

from safetensors import SafetensorError, safe_open
import torch

from ...config import ModelConfig
from ...errors import NotEnoughMemory, WeightsBroken
from ..attention.cache_memory import find_free_memory, find_whole_memory
from ..device.choose import resolve_device

logger = logging.getLogger(__name__)

# Bytes of a number in a file, by a part of safetensors' names; of others, 1.
_ITEM_BYTES = {"64": 8, "32": 4, "16": 2}
_GIB = 2**30


def check_weights_fit(folder: Path, config: ModelConfig) -> None:
    """Refuse a model whose weights the device can never hold, and warn of a close one.

    The kernel would otherwise kill the process in the middle of reading, without a word.

    Args:
      folder: in Hugging Face layout, with safetensors.

    Raises:
      NotEnoughMemory
      WeightsBroken: a file cannot be read.
    """
    device = resolve_device(config.device)
    needed = count_weight_bytes(folder, config)
    whole, free = find_whole_memory(device), find_free_memory(device)
    sentence = f"its weights take {needed / _GIB:.1f} GiB, and {device}"
    if needed > whole:
        raise NotEnoughMemory(
            f"{sentence} has {whole / _GIB:.1f} GiB in all; take a smaller model, a GGUF "
            "file of fewer bits, or several machines with --pipeline-parallel-size or "
            "--tensor-parallel-size"
        )
    if needed > free:
        logger.warning(
            "%s has %.1f GiB free: reading them may fail or be slow",
            sentence,
            free / _GIB,
        )


def count_weight_bytes(folder: Path, config: ModelConfig) -> int:
    """Return the least memory that the weights of a model take.

    Quantised weights count as they lie in the file, although they take more if they are
    dequantised.
    """
    if config.quantization != "none":
        item_bytes: int | None = 1
    elif config.dtype != "auto":
        item_bytes = getattr(torch, config.dtype).itemsize
    else:
        item_bytes = _read_item_bytes(folder)
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            # For torch, a file of more than the memory could not even be opened.
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():
                    tensor = file.get_slice(name)
                    kind = tensor.get_dtype()
                    held = _count_bytes(kind)
                    is_plain = kind in ("F64", "F32", "F16", "BF16")
                    size = item_bytes if is_plain and item_bytes else held
                    total += math.prod(tensor.get_shape()) * size
        except (OSError, SafetensorError) as error:
            raise WeightsBroken(str(folder), f"{path.name}: {error}") from None
    return total


def _count_bytes(kind: str) -> int:
    """Return the bytes of a number, by its name, such as BF16, I64 or F8_E4M3."""
    return next((size for part, size in _ITEM_BYTES.items() if part in kind), 1)


def _read_item_bytes(folder: Path) -> int | None:
    """Return the bytes of the checkpoint's own type; None if config.json has none."""
    try:
        fields = json.loads((folder / "config.json").read_text())
        name = fields.get("dtype") or fields.get("torch_dtype")
        dtype = getattr(torch, str(name), None)
    except (OSError, ValueError, AttributeError):
        # Those who read it next say so.
        return None
    return dtype.itemsize if isinstance(dtype, torch.dtype) else None
