"""The tensors of a plain Llama, by transformers' names."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor, nn

from ...runtimes.native.packer import Weights
from .description import PlainConfig

EMBEDDING = "model.embed_tokens"
FINAL_NORM = "model.norm"

Shapes = dict[str, tuple[int, ...]]


class PlainTensors(Protocol):
    """The files of a plain Llama's tensors, which are mapped.

    Tensors have the names of their modules, without `.weight`.
    """

    def fit(self, shapes: Shapes) -> bool:
        """Return whether they have these tensors, and no others, in types that can be used."""

    def find_weights(self, name: str) -> Weights:
        """Return the weights of a product, as they lie in the file."""

    def read_vector(self, name: str) -> Tensor:
        """Return the weight of a norm."""

    def make_embedding(self) -> nn.Module:
        """Make a module that reads the vectors of tokens from the file."""


def list_shapes(described: PlainConfig) -> Shapes:
    """Return the shapes of all tensors."""
    size, inner = described.hidden_size, described.intermediate_size
    queries = described.num_attention_heads * described.head_dim
    keys = described.num_key_value_heads * described.head_dim
    shapes: Shapes = {
        EMBEDDING: (described.vocab_size, size),
        FINAL_NORM: (size,),
        name_head(described): (described.vocab_size, size),
    }
    for i in range(described.num_hidden_layers):
        layer = name_layer(i)
        shapes |= {
            f"{layer}.input_layernorm": (size,),
            f"{layer}.self_attn.q_proj": (queries, size),
            f"{layer}.self_attn.k_proj": (keys, size),
            f"{layer}.self_attn.v_proj": (keys, size),
            f"{layer}.self_attn.o_proj": (size, queries),
            f"{layer}.post_attention_layernorm": (size,),
            f"{layer}.mlp.gate_proj": (inner, size),
            f"{layer}.mlp.up_proj": (inner, size),
            f"{layer}.mlp.down_proj": (size, inner),
        }
    return shapes


def count_parameters(described: PlainConfig) -> tuple[list[int], int]:
    """Return the numbers of parameters of each layer, and of the head."""
    shapes = list_shapes(described)
    names = [name_layer(i) for i in range(described.num_hidden_layers)]
    layers = [
        sum(math.prod(shapes[each]) for each in shapes if each.startswith(f"{name}."))
        for name in names
    ]
    return layers, math.prod(shapes[name_head(described)])


def name_head(described: PlainConfig) -> str:
    """Return the name of the output projection, which may be the vectors of tokens."""
    return EMBEDDING if described.tie_word_embeddings else "lm_head"


def name_layer(i: int) -> str:
    return f"model.layers.{i}"
