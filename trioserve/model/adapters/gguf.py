"""Adapters in GGUF files, by llama.cpp's names and in its order of rows."""

from __future__ import annotations

from collections.abc import Iterable

import gguf
import torch
from torch import Tensor

from ...types.gguf import GgufAdapter
from .config import AdapterProblem
from .description import LowRank, ReadAdapter
from .files import check_numbers
from .names import shorten
from .part import ModelPart

# transformers' classes -> llama.cpp's names of architectures whose products have, but for the
# order of rows below, the weights of transformers.
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
}

_A, _B = ".weight.lora_a", ".weight.lora_b"


def match_gguf(
    adapter: GgufAdapter, part: ModelPart, *, architecture: str, head_dim: int
) -> ReadAdapter:
    """Find the changes of an adapter.

    Args:
      architecture: the class of the model.
      head_dim: of its keys.

    Raises:
      AdapterProblem: it is another model's.
    """
    wanted = _ARCHITECTURES.get(architecture)
    if wanted is None:
        raise AdapterProblem(f"GGUF files with adapters of {architecture} are not read")
    if adapter.architecture != wanted:
        raise AdapterProblem(
            f"general.architecture is {adapter.architecture!r}, and the model's is "
            f"{wanted!r}"
        )
    names = _map_names(wanted, part.shapes)
    tensors = {
        name: check_numbers(name, torch.from_numpy(numbers))
        for name, numbers in adapter.tensors.items()
    }
    modules = {name.removesuffix(_A).removesuffix(_B) for name in tensors}
    if not modules:
        raise AdapterProblem("it has no tensors")
    if others := tensors.keys() - {m + end for m in modules for end in (_A, _B)}:
        raise AdapterProblem(f"the tensor {min(others)} is not supported")
    changes: dict[str, LowRank] = {}
    unmatched = []
    for module in sorted(modules):
        if module not in names:
            first = min(name for name in tensors if name.startswith(f"{module}."))
            part.refuse_unknown(first)
            unmatched.append(first)
            continue
        a, b = (tensors.get(module + end) for end in (_A, _B))
        if a is None or b is None:
            raise AdapterProblem(
                f"the tensor {module}{_A if a is None else _B} is missing"
            )
        num_outputs, num_inputs = part.shapes[names[module]]
        rank = len(a)
        if a.shape[1] != num_inputs or b.shape != (num_outputs, rank) or not rank:
            raise AdapterProblem(
                f"{module} has tensors of the shapes {tuple(a.shape)} and "
                f"{tuple(b.shape)}; the model needs (rank, {num_inputs}) and "
                f"({num_outputs}, rank)"
            )
        if wanted == "llama" and module.endswith((".attn_q", ".attn_k")):
            b = _order_rows(b, head_dim)
        # As in llama.cpp, an alpha of 0 stands for no scale.
        scale = adapter.alpha / rank if adapter.alpha else 1.0
        change = LowRank(a=a, b=b * scale)
        changes[names[module]] = part.take(names[module], change)
    return ReadAdapter(
        changes=changes, digest=adapter.digest, unmatched=tuple(unmatched)
    )


def _map_names(architecture: str, names: Iterable[str]) -> dict[str, str]:
    """Return the model's names of products by llama.cpp's."""
    codes = {name: code for code, name in gguf.MODEL_ARCH_NAMES.items()}
    layers = [int(each) for name in names for each in name.split(".") if each.isdigit()]
    table = gguf.get_tensor_name_map(codes[architecture], max(layers, default=0) + 1)
    found = {}
    for name in names:
        short = shorten(name)
        key = table.get_name(short) or table.get_name(f"model.{short}")
        if key is not None:
            found[key] = name
    return found


def _order_rows(b: Tensor, head_dim: int) -> Tensor:
    """Put the outputs of queries or keys in transformers' order.

    llama.cpp turns pairs of neighbours, and transformers the two halves of a head.
    """
    heads = b.unflatten(0, (-1, head_dim // 2, 2))  # (num_heads, pairs, 2, rank)
    ordered: Tensor = heads.transpose(1, 2).flatten(0, 2)
    return ordered
