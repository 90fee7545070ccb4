"""Adapters of mixtures of experts in peft's format.

peft wraps the module of fused experts once for each of its parameters that target_parameters
names; the first parameter has the innermost wrapper:

    experts.base_layer.lora_A    (num_experts * rank, num_inputs)      gate_up_proj
    experts.base_layer.lora_B    (num_outputs, rank * num_experts)
    experts.lora_A, lora_B                                             down_proj

The rows of A are in the order of experts and then of ranks, the columns of B in the order of
ranks and then of experts. Earlier versions of peft took the last two dimensions of a weight for
its inputs and its outputs, whichever they are. Then A reads outputs and B writes inputs, and the
change is the transposed one:

    (B A)^T = A^T B^T

Before transformers 5, experts were modules: experts.3.gate_proj.

Source: peft 0.21, tuners/lora/layer.py (ParamWrapper), utils/transformers_weight_conversion.py.
"""

from __future__ import annotations

from collections.abc import Mapping
import re

import torch
from torch import Tensor

from .config import AdapterProblem, PeftConfig
from .description import LowRank
from .files import take_tensor
from .names import ModuleNames
from .part import ModelPart
from .products import name_expert, split_expert

_WRAPPER = ".base_layer"

# The version of peft from which on A reads the inputs of every weight.
_SETTLED = 0, 20

_MODULE = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)")

# The weight of all experts that has a module's own weight: as which part of its outputs, and of
# how many.
_PARTS = {
    **{"gate_proj": ("gate_up_proj", 0, 2), "up_proj": ("gate_up_proj", 1, 2)},
    **{"w1": ("gate_up_proj", 0, 2), "w3": ("gate_up_proj", 1, 2)},
    "w2": ("down_proj", 0, 1),
}


class ExpertReader:
    """Makes the changes of experts from the tensors of an adapter.

    Args:
      part: runs them.
    """

    def __init__(self, config: PeftConfig, part: ModelPart) -> None:
        self._config = config
        self._part = part
        # The weights of each module in its own order, and their numbers of experts.
        self._weights: dict[str, dict[str, int]] = {}
        for name in part.shapes:
            if (found := split_expert(name)) is not None:
                experts, _, weight = found
                numbers = self._weights.setdefault(experts, {})
                numbers[weight] = numbers.get(weight, 0) + 1
        self._names = ModuleNames(self._weights)
        # The tensors of wrappers, from the outside in, by the names in the file.
        self._wrapped: dict[str, dict[int, Mapping[str, Tensor]]] = {}
        # The changes of modules that have become parts of a product.
        self._parts: dict[str, dict[int, LowRank]] = {}

    def take(self, module: str, tensors: Mapping[str, Tensor]) -> bool:
        """Take the tensors of a module; returns False if it has no experts that are here.

        Raises:
          AdapterProblem: the model cannot run them.
        """
        # No copy for each wrapper: a hostile name has a million of them.
        end, depth = len(module), 0
        while module.endswith(_WRAPPER, 0, end):
            end, depth = end - len(_WRAPPER), depth + 1
        bare = module[:end]
        if self._names.find(bare) is not None:
            self._refuse_magnitude(module)
            self._wrapped.setdefault(bare, {})[depth] = tensors
            return True
        found = _MODULE.fullmatch(module)
        experts = None if found is None else self._names.find(found[1])
        if found is None or experts is None:
            return False
        weights = self._weights[experts]
        whole = found[3], 0, 1
        weight, place, num_parts = (
            whole if found[3] in weights else _PARTS.get(found[3], whole)
        )
        if int(found[2]) >= weights.get(weight, 0):
            return False
        self._refuse_magnitude(module)
        if reason := self._config.explain_foreign(module):
            raise AdapterProblem(f"there are tensors of {module}, but {reason}")
        name = name_expert(experts, int(found[2]), weight)
        parts = self._parts.setdefault(name, {})
        if place in parts:
            raise AdapterProblem(f"the tensors of {module} are there twice")
        num_outputs, num_inputs = self._part.shapes[name]
        rank = self._config.find_rank(module)
        a = take_tensor(tensors, module, "lora_A", (rank, num_inputs))
        b = take_tensor(tensors, module, "lora_B", (num_outputs // num_parts, rank))
        parts[place] = LowRank(a=a, b=b * self._config.find_scale(module))
        return True

    def make_changes(self) -> dict[str, LowRank]:
        """Return the changes of all that was taken, by the names of products.

        Raises:
          AdapterProblem: tensors and target_parameters do not fit.
        """
        changes = {name: self._join(name, own) for name, own in self._parts.items()}
        for module, wrapped in self._wrapped.items():
            divided = self._divide(module, wrapped)
            if divided.keys() & changes.keys():
                raise AdapterProblem(f"the tensors of {module} are there twice")
            changes |= divided
        return {name: self._part.take(name, each) for name, each in changes.items()}

    def _refuse_magnitude(self, module: str) -> None:
        if self._config.use_dora:
            raise AdapterProblem(f"use_dora is not supported for {module}")

    def _join(self, name: str, parts: Mapping[int, LowRank]) -> LowRank:
        """Join the changes of the parts of a product's outputs."""
        num_outputs, _ = self._part.shapes[name]
        size = len(next(iter(parts.values())).b)
        b = torch.zeros(num_outputs, sum(each.rank for each in parts.values()))
        rank = 0
        for place, each in parts.items():
            b[place * size : (place + 1) * size, rank : rank + each.rank] = each.b
            rank += each.rank
        return LowRank(a=torch.cat([each.a for each in parts.values()]), b=b)

    def _divide(
        self, module: str, wrapped: Mapping[int, Mapping[str, Tensor]]
    ) -> dict[str, LowRank]:
        """Return the changes of each expert of a module."""
        experts = self._names.find(module)
        assert experts is not None, "it was found before"
        numbers = self._weights[experts]
        named = [
            weight
            for weight in numbers
            if self._config.names_parameter(f"{module}.{weight}")
        ]
        if sorted(wrapped) != [*range(len(named))]:
            raise AdapterProblem(
                f"there are tensors of {len(wrapped)} parameters of {module}, but "
                f"target_parameters names {' and '.join(named) or 'none'}"
            )
        tensors = {each: wrapped[i] for i, each in enumerate(reversed(named))}
        is_turned = self._is_turned(module, tensors)
        changes = {}
        for depth, weight in enumerate(reversed(named)):
            key, own = f"{module}.{weight}", module + depth * _WRAPPER
            rank, count = self._config.find_rank(key), numbers[weight]
            written, read = self._part.shapes[name_expert(experts, 0, weight)]
            if is_turned:
                written, read = read, written
            a = take_tensor(tensors[weight], own, "lora_A", (count * rank, read))
            b = take_tensor(tensors[weight], own, "lora_B", (written, rank * count))
            a = a.unflatten(0, (count, rank))  # (count, rank, read)
            b = b.unflatten(1, (rank, count)).permute(2, 0, 1)  # (count, written, rank)
            if is_turned:
                a, b = b.transpose(1, 2), a.transpose(1, 2)
            b = b * self._config.find_scale(key)
            for expert in range(count):
                changes[name_expert(experts, expert, weight)] = LowRank(
                    a=a[expert].contiguous(), b=b[expert].contiguous()
                )
        return changes

    def _is_turned(
        self, module: str, tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> bool:
        """Return whether A reads outputs and B writes inputs, as in older versions of peft.

        Args:
          tensors: of the wrappers of a module, by the names of weights.
        """
        experts = self._names.find(module)
        assert experts is not None, "it was found before"
        for weight, own in tensors.items():
            num_outputs, num_inputs = self._part.shapes[name_expert(experts, 0, weight)]
            if num_outputs != num_inputs and "lora_A" in own:
                return own["lora_A"].shape[-1] == num_outputs
        version = re.match(r"(\d+)\.(\d+)", self._config.peft_version or "0.0")
        if version is None or (int(version[1]), int(version[2])) < _SETTLED:
            raise AdapterProblem(
                f"peft_version is {self._config.peft_version}, and versions before 0.20 "
                f"have different orders of the dimensions of {module}, whose weights are "
                "square: save it with a later one"
            )
        return False
