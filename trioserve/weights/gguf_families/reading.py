"""Reads the tensors of a GGUF file by the names of transformers' parameters."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...types.gguf import GgufFile, GgufPart, GgufTensor
from ...types.gguf_rules import Unreadable


def read_tensors(
    file: GgufFile, model: nn.Module, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Read a file's tensors as the parameters of a model.

    Args:
      file: of a family.
      model: its parameters tell the names and shapes; it may be on the `meta` device.
      dtype: of the tensors that are returned.

    Raises:
      Unreadable: a tensor is missing, unknown or of another shape.
    """
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    mapped = np.memmap(file.path, dtype=np.uint8, mode="r")
    found: dict[str, Tensor] = {}
    for name, parts in file.list_parts(model.config).items():
        is_known = name in shapes
        if name and not is_known and not all(each.rule.is_optional for each in parts):
            raise Unreadable(f"the model has no {parts[0].tensor.name}")
        numbers = [_restore(mapped, part).to(dtype) for part in parts]
        if is_known:
            found[name] = parts[0].rule.make_parameter(numbers)
    _add_tied(model, found)
    for name, shape in shapes.items():
        if name not in found:
            raise Unreadable(f"the GGUF file has no tensor for {name}")
        if tuple(found[name].shape) != shape:
            raise Unreadable(f"the tensor for {name} has an unexpected shape")
    return found


def _restore(mapped: np.memmap[Any, Any], part: GgufPart) -> Tensor:
    return part.rule.restore(_read(mapped, part.tensor))


def _read(mapped: np.memmap[Any, Any], tensor: GgufTensor) -> Tensor:
    """Return the numbers of a tensor as float32."""
    import gguf

    kind = gguf.GGMLQuantizationType[tensor.kind]
    content = mapped[tensor.offset : tensor.offset + tensor.num_bytes]
    rows = content.reshape(prod(tensor.shape[:-1]), -1)
    numbers = gguf.dequantize(rows.view(np.ndarray), kind).reshape(tensor.shape)
    return torch.from_numpy(np.array(numbers, dtype=np.float32))


def _add_tied(model: Any, found: dict[str, Tensor]) -> None:
    for name, source in model.all_tied_weights_keys.items():
        if name not in found and source in found:
            found[name] = found[source]
