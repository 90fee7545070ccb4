"""Reads the tensors of a GGUF file by the names of transformers' parameters."""

from __future__ import annotations

from math import prod
import re
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ...types.gguf import GgufFile, GgufTensor
from .rules import Rule, Rules, Unreadable

_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")


def read_tensors(
    file: GgufFile, rules: Rules, model: nn.Module, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Read a file's tensors as the parameters of a model.

    Args:
      rules: by llama.cpp's names, without the number of the layer.
      model: its parameters tell the names and shapes; it may be on the `meta` device.
      dtype: of the tensors that are returned.

    Raises:
      Unreadable: a tensor is missing, unknown or of another shape.
    """
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    num_layers = int(getattr(model.config, "num_hidden_layers"))
    mapped = np.memmap(file.path, dtype=np.uint8, mode="r")
    parts: dict[str, dict[int, Tensor]] = {}
    joins: dict[str, Rule] = {}
    for tensor in file.tensors:
        name, rule = _find_rule(tensor.name, rules, num_layers)
        # Blocks behind the last layer predict several tokens at once.
        if rule is None:
            continue
        numbers = rule.undo(_read(mapped, tensor))
        if name not in shapes:
            if rule.is_optional:
                continue
            raise Unreadable(f"the model has no {tensor.name}")
        parts.setdefault(name, {})[rule.part or 0] = numbers.to(dtype)
        joins[name] = rule
    found = {name: _join(joins[name], parts[name]) for name in parts}
    _add_tied(model, found)
    for name, shape in shapes.items():
        if name not in found:
            raise Unreadable(f"the GGUF file has no tensor for {name}")
        if tuple(found[name].shape) != shape:
            raise Unreadable(f"the tensor for {name} has an unexpected shape")
    return found


def _find_rule(name: str, rules: Rules, num_layers: int) -> tuple[str, Rule | None]:
    """Return the name of a tensor's parameter, and its rule; None for tensors to skip."""
    found = _LAYER.fullmatch(name)
    number, short = (int(found[1]), found[2]) if found else (None, name)
    if number is not None and number >= num_layers:
        return name, None
    rule = rules.get(short)
    if rule is None:
        raise Unreadable(f"the tensor {name} is not known")
    layer = "" if number is None else f"model.layers.{number}."
    return f"{layer}{rule.name}", rule


def _read(mapped: np.memmap[Any, Any], tensor: GgufTensor) -> Tensor:
    """Return the numbers of a tensor as float32."""
    import gguf

    kind = gguf.GGMLQuantizationType[tensor.kind]
    content = mapped[tensor.offset : tensor.offset + tensor.num_bytes]
    rows = content.reshape(prod(tensor.shape[:-1]), -1)
    numbers = gguf.dequantize(rows.view(np.ndarray), kind).reshape(tensor.shape)
    return torch.from_numpy(np.array(numbers, dtype=np.float32))


def _join(rule: Rule, parts: dict[int, Tensor]) -> Tensor:
    ordered = [parts[index] for index in sorted(parts)]
    if rule.join is not None:
        return rule.join(ordered)
    return ordered[0] if len(ordered) == 1 else torch.cat(ordered, dim=-2)


def _add_tied(model: Any, found: dict[str, Tensor]) -> None:
    for name, source in model.all_tied_weights_keys.items():
        if name not in found and source in found:
            found[name] = found[source]
