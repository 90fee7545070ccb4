"""The rules that several families share.

Source: llama.cpp's conversion/*.py, which make the changes that are undone here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from ...types.gguf_rules import Rule, Rules

# The entries of a file's header: numbers, texts and lists of numbers.
Metadata: TypeAlias = Mapping[str, Any]


def subtract_one(numbers: Tensor) -> Tensor:
    return numbers - 1


def log_negative(numbers: Tensor) -> Tensor:
    """Undo -exp(A_log)."""
    return torch.log(-numbers).flatten()


def flatten(numbers: Tensor) -> Tensor:
    return numbers.flatten()


def add_channel(numbers: Tensor) -> Tensor:
    """Make the kernel of a convolution of each channel three-dimensional again."""
    return numbers.unsqueeze(1)


def unpermute(num_heads: int) -> Callable[[Tensor], Tensor]:
    """Return an order of rows: that of the rotary halves of Llama's queries and keys.

    Within each head, pairs become halves: (d / 2, 2) rows become (2, d / 2).
    """

    def order(numbers: Tensor) -> Tensor:
        pairs = numbers.reshape(num_heads, -1, 2, *numbers.shape[1:])
        return pairs.swapaxes(1, 2).reshape(numbers.shape)

    return order


def rename(names: Mapping[str, str]) -> Rules:
    """Return rules for tensors with one weight each, by the names of their modules."""
    return {
        f"{short}.weight": Rule(name=f"{name}.weight") for short, name in names.items()
    }


ENDS: Final = rename(
    {
        "token_embd": "model.embed_tokens",
        "output": "lm_head",
        "output_norm": "model.norm",
    }
)
NORMS: Final = rename(
    {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
)
ATTENTION: Final = rename(
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
    }
)
MLP: Final = rename(
    {
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)


def join_rows(name: str, *parts: str) -> Rules:
    """Return rules for tensors that are one parameter, joined along the rows."""
    return {
        f"{part}.weight": Rule(name=name, part=index)
        for index, part in enumerate(parts)
    }


def route(moe: str, router: str) -> Rules:
    """Return the rules of experts, whose weights lie in one tensor of each kind.

    Args:
      moe, router: names of their module and of its router.
    """
    return {
        **rename({"ffn_gate_inp": f"{moe}.{router}"}),
        **join_rows(f"{moe}.experts.gate_up_proj", "ffn_gate_exps", "ffn_up_exps"),
        "ffn_gate_up_exps.weight": Rule(name=f"{moe}.experts.gate_up_proj"),
        "ffn_down_exps.weight": Rule(name=f"{moe}.experts.down_proj"),
    }


def read_mamba(mixer: str) -> Rules:
    """Return the rules of a Mamba-2 mixer, by the name of its module."""
    return {
        **rename({"ssm_in": f"{mixer}.in_proj", "ssm_out": f"{mixer}.out_proj"}),
        "ssm_in.bias": Rule(name=f"{mixer}.in_proj.bias"),
        "ssm_out.bias": Rule(name=f"{mixer}.out_proj.bias"),
        "ssm_conv1d.weight": Rule(name=f"{mixer}.conv1d.weight", undo=add_channel),
        "ssm_conv1d.bias": Rule(name=f"{mixer}.conv1d.bias"),
        "ssm_a": Rule(name=f"{mixer}.A_log", undo=log_negative),
        "ssm_d": Rule(name=f"{mixer}.D", undo=flatten),
        "ssm_dt.bias": Rule(name=f"{mixer}.dt_bias"),
        # Its groups are rows.
        "ssm_norm.weight": Rule(name=f"{mixer}.norm.weight", undo=flatten),
    }
