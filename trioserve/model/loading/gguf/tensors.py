"""Puts the tensors of a GGUF file into a model that was built without memory.

Products and experts keep their weights in the blocks of the file, which is mapped. The vectors
of tokens are read from it when a step needs them. All other parameters become real numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ....types.gguf import GgufFile
from ...runtimes.choice import NotRecognised
from ...runtimes.description import make_empty
from ...runtimes.native.gguf_matrix import GgufMatrix
from ...runtimes.native.packer import Rows
from .content import GgufEmbedding
from .processed import ProcessedTensors
from .ruled import RuledTensors
from .source import GgufSource


def fill_model(
    model: PreTrainedModel, file: GgufFile, dtype: torch.dtype
) -> dict[Tensor, Rows]:
    """Put the tensors of a file into a model.

    Args:
      model: on the `meta` device; all of it but the weights of products and experts is on
        the CPU after this.
      dtype: of the vectors of tokens.

    Returns:
      The rows of its products and experts.

    Raises:
      NotRecognised: the file lacks tensors, has others, or they cannot stay in it.
    """
    source: GgufSource
    source = (ProcessedTensors if file.make_rules is None else RuledTensors)(
        model, file
    )
    layers: Any = model.get_decoder().layers
    on_kernels = {*layers.modules(), model.get_output_embeddings()}
    found: dict[Tensor, Rows] = {}
    make_buffers(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Embedding):
            model.set_submodule(name, _embed(source, name, module, dtype))
            continue
        for key, parameter in list(module.named_parameters(recurse=False)):
            full = f"{name}.{key}"
            if module in on_kernels and _is_packed(module, parameter):
                empty = make_empty(parameter.shape, dtype)
                found[empty] = source.find_rows(full, parameter)
                setattr(module, key, empty)
                continue
            numbers = source.read_numbers(full, parameter)
            if isinstance(module, nn.Linear):
                # Modules multiply vectors of tokens by it.
                numbers = numbers.to(dtype)
            setattr(module, key, nn.Parameter(numbers, requires_grad=False))
        for key, buffer in list(module.named_buffers(recurse=False)):
            if source.has(f"{name}.{key}"):
                module._buffers[key] = source.read_numbers(f"{name}.{key}", buffer)
    _scale_rotary(model, source.read_rotary_factors())
    source.check_used()
    return found


def _is_packed(module: nn.Module, parameter: Tensor) -> bool:
    """Return whether a parameter is a product's, or all experts'."""
    if isinstance(module, nn.Linear):
        return parameter.dim() == 2
    return parameter.dim() == 3 and not isinstance(module, nn.Conv1d)


def _embed(
    source: GgufSource, name: str, embedding: Any, dtype: torch.dtype
) -> GgufEmbedding:
    matrix, *others = source.find_rows(f"{name}.weight", embedding.weight)
    if others or not isinstance(matrix, GgufMatrix) or matrix.order is not None:
        raise NotRecognised("the vectors of its tokens lie in another order")
    scale = getattr(embedding, "embed_scale", None)
    if scale is None and type(embedding) is not nn.Embedding:
        raise NotRecognised(f"its embedding is a {type(embedding).__name__}")
    # The modules round the factor to the type of the vectors.
    return GgufEmbedding(
        matrix, dtype, 1.0 if scale is None else float(scale.to(dtype))
    )


def make_buffers(model: PreTrainedModel) -> None:
    """Compute the buffers that no file has, such as the frequencies of rotary angles."""
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        for name, buffer in buffers.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        if buffers:
            model._init_weights(module)
    # It computes buffers of its layers; Falcon-H1 does.
    model._init_weights(model.get_decoder())


def _scale_rotary(model: nn.Module, factors: Tensor | None) -> None:
    if factors is None:
        return
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if frequencies is not None:
            module.inv_freq = frequencies / factors
