"""The tensors of a plain Llama's GGUF file, by llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...types.gguf import GgufTensor
from ..native.packer import PACKABLE_KINDS
from .plain_config import PlainConfig

# Types of vectors, as llama.cpp writes them.
_VECTOR_KINDS = frozenset({"F32", "F16"})


def has_plain_tensors(
    tensors: Mapping[str, GgufTensor], described: PlainConfig
) -> bool:
    """Whether a file has all tensors of the architecture, and no others."""
    size, inner = described.hidden_size, described.intermediate_size
    queries = described.num_attention_heads * described.head_dim
    keys = described.num_key_value_heads * described.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (described.vocab_size, size),
        "output_norm": (size,),
    }
    if not described.tie_word_embeddings or "output.weight" in tensors:
        shapes["output"] = described.vocab_size, size
    for i in range(described.num_hidden_layers):
        shapes |= {
            f"blk.{i}.attn_norm": (size,),
            f"blk.{i}.attn_q": (queries, size),
            f"blk.{i}.attn_k": (keys, size),
            f"blk.{i}.attn_v": (keys, size),
            f"blk.{i}.attn_output": (size, queries),
            f"blk.{i}.ffn_norm": (size,),
            f"blk.{i}.ffn_gate": (inner, size),
            f"blk.{i}.ffn_up": (inner, size),
            f"blk.{i}.ffn_down": (size, inner),
        }
    return {name: tensor.shape for name, tensor in tensors.items()} == {
        f"{name}.weight": shape for name, shape in shapes.items()
    } and all(
        tensor.kind in (_VECTOR_KINDS if len(tensor.shape) == 1 else PACKABLE_KINDS)
        for tensor in tensors.values()
    )


def name_head(tensors: Mapping[str, GgufTensor]) -> str:
    """Return the name of the output projection, which may be the vectors of tokens."""
    return "output.weight" if "output.weight" in tensors else "token_embd.weight"


def order_rows(num_outputs: int, num_heads: int) -> NDArray[np.int64]:
    """Return the row of the file for each output of queries or keys.

    llama.cpp turns pairs of neighbours, and transformers the two halves of a head.
    Source: LlamaTensorProcessor in transformers' modeling_gguf_pytorch_utils.
    """
    rows = np.arange(num_outputs).reshape(num_heads, -1, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1))
