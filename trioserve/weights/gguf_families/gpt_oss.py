"""gpt-oss: experts with biases, sinks of attention, and every second layer with a window.

Weights of experts are (num_experts, inputs, outputs) in transformers, and gates and up
projections take turns there. In the file, as for the kernels, outputs are rows, and the gates
of an expert stand before its up projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ...types.gguf_rules import Rule, Rules
from .rules import ENDS, Metadata, rename
from .shared import Shapes, describe_decoder, make_reader

_BIASED: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate_inp": "mlp.router",
}


def describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        **describe_decoder(metadata, shapes, scaling="yarn"),
        "model_type": "gpt_oss",
        # No header lists the layers with windows: as in transformers, they are the first,
        # the third and so on.
        "sliding_window": read("attention.sliding_window"),
        "head_dim": read("attention.key_length"),
        "intermediate_size": read("expert_feed_forward_length"),
        "num_local_experts": read("expert_count"),
        "num_experts_per_tok": read("expert_used_count"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": read("rope.freq_base"),
            "factor": read("rope.scaling.factor"),
            "original_max_position_embeddings": read(
                "rope.scaling.original_context_length"
            ),
            "beta_fast": read("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": read("rope.scaling.yarn_beta_slow", 1.0),
            "truncate": False,
        },
    }


def read(config: Any) -> Rules:
    gate_up = "mlp.experts.gate_up_proj"
    return {
        **ENDS,
        **rename(
            {
                **{"attn_norm": "input_layernorm"},
                **{"post_attention_norm": "post_attention_layernorm"},
            }
        ),
        **{
            f"{short}.{kind}": Rule(name=f"{name}.{kind}")
            for short, name in _BIASED.items()
            for kind in ("weight", "bias")
        },
        "attn_sinks.weight": Rule(name="self_attn.sinks"),
        "ffn_gate_exps.weight": Rule(name=gate_up, part=0, form=_interleave_outputs),
        "ffn_up_exps.weight": Rule(name=gate_up, part=1, form=_interleave_outputs),
        "ffn_down_exps.weight": Rule(name="mlp.experts.down_proj", form=_transpose),
        "ffn_gate_exps.bias": Rule(name=f"{gate_up}_bias", part=0, join=_interleave),
        "ffn_up_exps.bias": Rule(name=f"{gate_up}_bias", part=1, join=_interleave),
        "ffn_down_exps.bias": Rule(name="mlp.experts.down_proj_bias"),
    }


def _interleave(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([*parts], dim=-1).flatten(-2)


def _transpose(weights: Tensor) -> Tensor:
    return weights.transpose(1, 2).contiguous()


def _interleave_outputs(weights: Tensor) -> Tensor:
    """Let gates and up projections take turns as columns, from rows in two halves."""
    return _interleave(weights.transpose(1, 2).chunk(2, dim=-1))
