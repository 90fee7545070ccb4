"""The tensors of a plain Llama in a GGUF file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ....types.gguf import GgufFile, GgufTensor
from ...runtimes.native.gguf_matrix import GgufMatrix
from ...runtimes.native.packer import PACKABLE_KINDS
from ..gguf.content import GgufContent, GgufEmbedding
from .description import PlainConfig
from .tensors import EMBEDDING, FINAL_NORM, Shapes, name_layer

# Types of vectors, as llama.cpp writes them.
_VECTOR_KINDS = frozenset({"F32", "F16"})

# transformers' names -> llama.cpp's.
_NAMES = {EMBEDDING: "token_embd", FINAL_NORM: "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufTensors:
    """A PlainTensors.

    Args:
      dtype: of the vectors of tokens.
    """

    def __init__(
        self, file: GgufFile, described: PlainConfig, dtype: torch.dtype
    ) -> None:
        self._architecture = file.architecture
        self._tensors = {tensor.name: tensor for tensor in file.tensors}
        self._names = _map_names(described.num_hidden_layers)
        self._num_heads = {
            "q_proj": described.num_attention_heads,
            "k_proj": described.num_key_value_heads,
        }
        self._dtype = dtype
        self._content = GgufContent(file)

    def fit(self, shapes: Shapes) -> bool:
        return (
            self._architecture == "llama"
            and {name: tensor.shape for name, tensor in self._tensors.items()}
            == {self._names[name]: shape for name, shape in shapes.items()}
            and all(
                tensor.kind
                in (_VECTOR_KINDS if len(tensor.shape) == 1 else PACKABLE_KINDS)
                for tensor in self._tensors.values()
            )
        )

    def find_weights(self, name: str) -> GgufMatrix:
        tensor = self._find(name)
        num_heads = self._num_heads.get(name.rpartition(".")[2])
        return GgufMatrix(
            kind=tensor.kind,
            num_inputs=tensor.shape[1],
            rows=self._content.view(tensor),
            order=(
                None if num_heads is None else _order_rows(tensor.shape[0], num_heads)
            ),
        )

    def read_vector(self, name: str) -> Tensor:
        return torch.from_numpy(np.array(self._content.read(self._find(name))))

    def make_embedding(self) -> GgufEmbedding:
        return GgufEmbedding(self.find_weights(EMBEDDING), self._dtype, 1.0)

    def _find(self, name: str) -> GgufTensor:
        return self._tensors[self._names[name]]


def _map_names(num_layers: int) -> dict[str, str]:
    names = dict(_NAMES)
    for i in range(num_layers):
        for name, short in _LAYER_NAMES.items():
            names[f"{name_layer(i)}.{name}"] = f"blk.{i}.{short}"
    return {name: f"{short}.weight" for name, short in names.items()}


def _order_rows(num_outputs: int, num_heads: int) -> NDArray[np.int64]:
    """Return the row of the file for each output of queries or keys.

    llama.cpp turns pairs of neighbours, and transformers the two halves of a head.
    Source: LlamaTensorProcessor in transformers' modeling_gguf_pytorch_utils.
    """
    rows = np.arange(num_outputs).reshape(num_heads, -1, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1))
