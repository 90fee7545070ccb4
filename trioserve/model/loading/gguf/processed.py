"""Tensors that transformers' own reader of GGUF files knows.

The package gguf knows the names of llama.cpp's tensors, and transformers the order of their
numbers.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from ....types.gguf import GgufFile, GgufTensor
from ...runtimes.choice import NotRecognised
from ...runtimes.native.packer import Rows
from .content import GgufContent

# Llama 3 divides the frequencies of rotary angles by these, and its configuration in the
# file does not say so.
_ROTARY_FACTORS = "rope_freqs.weight"


class ProcessedTensors:
    """A GgufSource."""

    def __init__(self, model: PreTrainedModel, file: GgufFile) -> None:
        processor_class: Any = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
        self._processor = processor_class(config=model.config.to_dict())
        self._tensors = {tensor.name: tensor for tensor in file.tensors}
        self._names = _map_names(model, file.architecture)
        # Names of other parameters with the same numbers.
        self._tied: dict[str, str] = model.all_tied_weights_keys
        self._used: set[str] = set()
        self._content = GgufContent(file)

    def has(self, name: str) -> bool:
        return self._names.get(name) in self._tensors

    def find_rows(self, name: str, parameter: Tensor) -> Rows:
        tensor = self._find(name, parameter)
        order = self._process(np.arange(tensor.shape[0])[:, None], tensor)[:, 0]
        is_ordered = bool(np.all(order[1:] > order[:-1]))
        matrix = self._content.find_matrix(tensor)
        return [matrix if is_ordered else matrix.take(order)]

    def read_numbers(self, name: str, parameter: Tensor) -> Tensor:
        tensor = self._find(name, parameter)
        processed = self._process(self._content.read(tensor), tensor)
        return torch.from_numpy(np.array(processed, dtype=np.float32))

    def read_rotary_factors(self) -> Tensor | None:
        tensor = self._tensors.get(_ROTARY_FACTORS)
        if tensor is None:
            return None
        self._used.add(tensor.name)
        return torch.from_numpy(
            self._content.view(tensor).view(np.float32).reshape(-1).copy()
        )

    def check_used(self) -> None:
        unused = self._tensors.keys() - self._used
        if unused:
            raise NotRecognised(f"the model has no {min(unused)}")

    def _find(self, name: str, parameter: Tensor) -> GgufTensor:
        names = (self._names.get(each, "") for each in (name, self._tied.get(name, "")))
        tensor = next(filter(None, map(self._tensors.get, names)), None)
        if tensor is None:
            raise NotRecognised(f"the GGUF file has no {name}")
        if tensor.shape != tuple(parameter.shape):
            raise NotRecognised(f"{tensor.name} has an unexpected shape")
        self._used.add(tensor.name)
        return tensor

    def _process(self, numbers: NDArray[Any], tensor: GgufTensor) -> NDArray[Any]:
        """Undo llama.cpp's conversion of a tensor."""
        processed: NDArray[Any]
        processed = self._processor.process(weights=numbers, name=tensor.name).weights
        return processed


def _map_names(model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """Return llama.cpp's names of a model's parameters.

    transformers' get_gguf_hf_weights_map would build a table for each module, which takes
    twenty seconds.
    """
    codes = {name: code for code, name in gguf.MODEL_ARCH_NAMES.items()}
    num_layers = model.config.num_hidden_layers
    table = gguf.get_tensor_name_map(codes[architecture], num_layers)
    names = {}
    for name in model.state_dict():
        base, dot, suffix = name.rpartition(".")
        found = table.get_name(base)
        if found is not None:
            names[name] = found + dot + suffix
    return names
