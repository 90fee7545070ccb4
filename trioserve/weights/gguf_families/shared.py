"""Fields of configurations that all families have."""

from __future__ import annotations

from typing import Any

from ...types.gguf_rules import Unreadable
from .rules import Metadata

Shapes = dict[str, tuple[int, ...]]


def describe_decoder(
    metadata: Metadata, shapes: Shapes, *, scaling: str = "none"
) -> dict[str, Any]:
    """Return the fields that a decoder's configuration has in every family.

    Args:
      scaling: llama.cpp's name of how the family's rotary angles are scaled.

    Raises:
      Unreadable: the header lacks one, the model is not a decoder, or its rotary angles
        are scaled in another way.
    """
    read = make_reader(metadata)
    if metadata.get(f"{metadata['general.architecture']}.attention.causal") is False:
        raise Unreadable("the model is an encoder")
    found = read("rope.scaling.type", "none")
    if found != scaling:
        raise Unreadable(f"the scaling of its rotary angles is {found}, not {scaling}")
    heads = read("attention.head_count_kv")
    return {
        "max_position_embeddings": read("context_length"),
        "hidden_size": read("embedding_length"),
        "num_hidden_layers": read("block_count") - read("nextn_predict_layers", 0),
        "num_attention_heads": read("attention.head_count"),
        # A list has 0 for layers without attention.
        "num_key_value_heads": max(heads) if isinstance(heads, list) else heads,
        "vocab_size": shapes["token_embd.weight"][0],
        # llama.cpp writes the output projection only if it is not the embedding.
        "tie_word_embeddings": "output.weight" not in shapes,
    }


def make_reader(metadata: Metadata) -> Any:
    """Return a function that reads an entry of the architecture, as `read(key, default)`."""
    architecture = metadata["general.architecture"]
    needed = object()

    def read(key: str, default: object = needed) -> Any:
        found = metadata.get(f"{architecture}.{key}", default)
        if found is needed:
            raise Unreadable(f"the header has no {architecture}.{key}")
        return found

    return read


def list_attention(metadata: Metadata) -> list[bool]:
    """Return which layers have attention: the others have no heads for keys."""
    read = make_reader(metadata)
    heads = read("attention.head_count_kv")
    if not isinstance(heads, list):
        return [heads > 0] * read("block_count")
    return [count > 0 for count in heads]
