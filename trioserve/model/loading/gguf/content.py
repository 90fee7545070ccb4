"""The numbers of a GGUF file, which is mapped."""

from __future__ import annotations

import math

import gguf
import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor, nn

from ....types.gguf import GgufFile, GgufTensor
from ...runtimes.choice import NotRecognised
from ...runtimes.description import make_empty
from ...runtimes.native.gguf_matrix import GgufMatrix
from ...runtimes.native.packer import PACKABLE_KINDS


class GgufContent:
    """The content of a file."""

    def __init__(self, file: GgufFile) -> None:
        self._mapped = np.memmap(file.path, dtype=np.uint8, mode="r")

    def view(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Return the blocks of a tensor, (num_rows, bytes of a row), a view of the file."""
        content = self._mapped[tensor.offset : tensor.offset + tensor.num_bytes]
        view: NDArray[np.uint8]
        view = content.reshape(math.prod(tensor.shape[:-1]), -1).view(np.ndarray)
        return view

    def find_matrix(self, tensor: GgufTensor) -> GgufMatrix:
        """Return the blocks of a tensor; of experts, they follow each other.

        Raises:
          NotRecognised: they cannot be packed.
        """
        if tensor.kind not in PACKABLE_KINDS:
            raise NotRecognised(f"{tensor.name} has the type {tensor.kind}")
        return GgufMatrix(
            kind=tensor.kind, num_inputs=tensor.shape[-1], rows=self.view(tensor)
        )

    def read(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """Return the numbers of a tensor."""
        kind = gguf.GGMLQuantizationType[tensor.kind]
        return _dequantise(self.view(tensor), kind).reshape(tensor.shape)


class GgufEmbedding(nn.Module):
    """The vectors of tokens, read from the blocks of a GGUF file.

    Args:
      matrix: its rows are the vectors.
      scale: factor of all vectors, as some models have it.
    """

    def __init__(self, matrix: GgufMatrix, dtype: torch.dtype, scale: float) -> None:
        super().__init__()
        self._rows = matrix.rows
        self._kind = gguf.GGMLQuantizationType[matrix.kind]
        self._scale = scale
        self.weight = make_empty((matrix.num_outputs, matrix.num_inputs), dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        rows = self._rows[input_ids.flatten().numpy()]
        vectors = torch.from_numpy(_dequantise(rows, self._kind) * self._scale)
        return vectors.to(self.weight.dtype).view(*input_ids.shape, -1)


def _dequantise(
    rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType
) -> NDArray[np.float32]:
    if kind == gguf.GGMLQuantizationType.F32:
        return rows.view(np.float32)
    if kind == gguf.GGMLQuantizationType.F16:
        return rows.view(np.float16).astype(np.float32)
    numbers: NDArray[np.float32] = gguf.dequantize(rows, kind)
    return numbers
