"""Puts the tensors of a GGUF file into a model that was built without memory.

Products keep their weights in the blocks of the file, which is mapped. The vectors of
tokens are read from it when a step needs them. Norms, biases and position encodings become
real float32 numbers. The package gguf knows the names of llama.cpp's tensors, and
transformers the order of their numbers.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from ....types.gguf import GgufFile, GgufTensor
from ...runtimes.choice import NotRecognised
from ...runtimes.description import make_empty
from ...runtimes.native.gguf_matrix import GgufMatrix
from ...runtimes.native.packer import PACKABLE_KINDS
from .content import GgufContent, GgufEmbedding

# Llama 3 divides the frequencies of rotary angles by these, and its configuration in the
# file does not say so.
_ROTARY_FACTORS = "rope_freqs.weight"


def fill_model(
    model: PreTrainedModel, file: GgufFile, dtype: torch.dtype
) -> dict[nn.Linear, GgufMatrix]:
    """Put the tensors of a file into a model.

    Args:
      model: on the `meta` device; all of it but the weights of products is on the CPU
        after this.
      dtype: of the vectors of tokens.

    Returns:
      The weights of its products.

    Raises:
      NotRecognised: the file lacks tensors, has others, or they cannot stay in it.
    """
    source = _Tensors(model, file)
    embedding = model.get_input_embeddings()
    sources: dict[nn.Linear, GgufMatrix] = {}
    for name, module in list(model.named_modules()):
        make_buffers(model, module)
        if module is embedding:
            model.set_input_embeddings(_embed(source, name, embedding, dtype))
            continue
        for key, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(module, nn.Linear) and key == "weight":
                sources[module] = source.find_matrix(f"{name}.weight", parameter)
                module.weight = make_empty(parameter.shape, dtype)
            else:
                numbers = source.read_numbers(f"{name}.{key}", parameter)
                setattr(module, key, nn.Parameter(numbers, requires_grad=False))
    _scale_rotary(model, source.read_rotary_factors())
    source.check_used()
    return sources


class _Tensors:
    """The tensors of a file by the names of transformers' parameters."""

    def __init__(self, model: PreTrainedModel, file: GgufFile) -> None:
        processor_class: Any = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
        self._processor = processor_class(config=model.config.to_dict())
        self._tensors = {tensor.name: tensor for tensor in file.tensors}
        self._names = _map_names(model, file.architecture)
        # Names of other parameters with the same numbers.
        self._tied: dict[str, str] = model.all_tied_weights_keys
        self._used: set[str] = set()
        self._content = GgufContent(file)

    def find_matrix(self, name: str, parameter: Tensor) -> GgufMatrix:
        tensor = self._find(name, parameter)
        if tensor.kind not in PACKABLE_KINDS:
            raise NotRecognised(f"{tensor.name} has the type {tensor.kind}")
        order = self._process(np.arange(tensor.shape[0])[:, None], tensor)[:, 0]
        is_ordered = bool(np.all(order[1:] > order[:-1]))
        return GgufMatrix(
            kind=tensor.kind,
            num_inputs=tensor.shape[1],
            rows=self._content.view(tensor),
            order=None if is_ordered else np.ascontiguousarray(order),
        )

    def read_numbers(self, name: str, parameter: Tensor) -> Tensor:
        """Return a tensor as float32, in the form that transformers wants."""
        tensor = self._find(name, parameter)
        processed = self._process(self._content.read(tensor), tensor)
        return torch.from_numpy(np.array(processed, dtype=np.float32))

    def read_rotary_factors(self) -> Tensor | None:
        """Return divisors of the frequencies of rotary angles, if the file has them."""
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


def _embed(
    source: _Tensors, name: str, embedding: Any, dtype: torch.dtype
) -> GgufEmbedding:
    matrix = source.find_matrix(f"{name}.weight", embedding.weight)
    if matrix.order is not None:
        raise NotRecognised("the vectors of its tokens lie in another order")
    scale = getattr(embedding, "embed_scale", None)
    if scale is None and type(embedding) is not nn.Embedding:
        raise NotRecognised(f"its embedding is a {type(embedding).__name__}")
    # The modules round the factor to the type of the vectors.
    return GgufEmbedding(
        matrix, dtype, 1.0 if scale is None else float(scale.to(dtype))
    )


def make_buffers(model: PreTrainedModel, module: nn.Module) -> None:
    """Compute the buffers that no file has, such as the frequencies of rotary angles."""
    buffers = dict(module.named_buffers(recurse=False))
    for name, buffer in buffers.items():
        module._buffers[name] = torch.empty_like(buffer, device="cpu")
    if buffers:
        model._init_weights(module)


def _scale_rotary(model: nn.Module, factors: Tensor | None) -> None:
    if factors is None:
        return
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if frequencies is not None:
            module.inv_freq = frequencies / factors
