"""Tensors of families that have rules of our own (weights/gguf_families/)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ....types.gguf import GgufFile, GgufPart
from ...runtimes.choice import NotRecognised
from ...runtimes.native.gguf_matrix import GgufMatrix
from ...runtimes.native.packer import Rows, take
from .content import GgufContent


class RuledTensors:
    """A GgufSource."""

    def __init__(self, model: PreTrainedModel, file: GgufFile) -> None:
        self._content = GgufContent(file)
        self._parts = file.list_parts(model.config)
        # Names of other parameters with the same numbers.
        self._tied: dict[str, str] = model.all_tied_weights_keys
        self._used: set[str] = set()
        for part in self._parts.pop("", ()):
            # No parameter, but numbers that must be as expected.
            self._restore(part)

    def has(self, name: str) -> bool:
        return name in self._parts

    def find_rows(self, name: str, parameter: Tensor) -> Rows:
        parts = self._find(name)
        if any(part.rule.undo is not None for part in parts):
            return [self.read_numbers(name, parameter).to(parameter.dtype)]
        order = _order_rows(parts)
        matrices = [self._find_matrix(part) for part in parts]
        sizes = {matrix.num_inputs for matrix in matrices}
        form = parts[0].rule.form
        weights = torch.empty(*order.shape, matrices[0].num_inputs, device="meta")
        shape = weights.shape if form is None else form(weights).shape
        if len(sizes) > 1 or shape != parameter.shape:
            raise NotRecognised(f"{parts[0].tensor.name} has an unexpected shape")
        places = order.flatten().numpy()
        if np.array_equal(places, np.arange(len(places))):
            return matrices
        return take(matrices, places)

    def read_numbers(self, name: str, parameter: Tensor) -> Tensor:
        parts = self._find(name)
        numbers = parts[0].rule.make_parameter([self._restore(part) for part in parts])
        if numbers.shape != parameter.shape:
            raise NotRecognised(f"{parts[0].tensor.name} has an unexpected shape")
        return numbers.contiguous()

    def read_rotary_factors(self) -> None:
        return None

    def check_used(self) -> None:
        for name in self._parts.keys() - self._used:
            part = self._parts[name][0]
            if not part.rule.is_optional:
                raise NotRecognised(f"the model has no {part.tensor.name}")

    def _find(self, name: str) -> list[GgufPart]:
        found = name if name in self._parts else self._tied.get(name, "")
        if found not in self._parts:
            raise NotRecognised(f"the GGUF file has no {name}")
        self._used.add(found)
        return self._parts[found]

    def _find_matrix(self, part: GgufPart) -> GgufMatrix:
        matrix = self._content.find_matrix(part.tensor)
        if part.rule.columns is None:
            return matrix
        columns = part.rule.columns(torch.arange(matrix.num_inputs))
        return replace(matrix, columns=columns.numpy())

    def _restore(self, part: GgufPart) -> Tensor:
        numbers = np.array(self._content.read(part.tensor), dtype=np.float32)
        return part.rule.restore(torch.from_numpy(numbers))


def _order_rows(parts: Sequence[GgufPart]) -> Tensor:
    """Return the place of each row of a parameter among the rows of its parts.

    Returns:
      (..., num_outputs) int64; experts come first
    """
    orders, begin = [], 0
    for part in parts:
        shape = part.tensor.shape[:-1]
        end = begin + prod(shape)
        # Columns of one number are enough for a rule that moves rows.
        rows = torch.arange(begin, end).view(*shape, 1)
        orders.append(rows if part.rule.rows is None else part.rule.rows(rows))
        begin = end
    return parts[0].rule.join_parts(orders).squeeze(-1)
