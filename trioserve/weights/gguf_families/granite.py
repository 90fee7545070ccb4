"""Granite 3 and 4: dense attention, and Mamba-2 with or without experts."""

from __future__ import annotations

from typing import Any

from ...types.gguf_rules import Rule, Rules, Unreadable
from .rules import (
    ATTENTION,
    ENDS,
    MLP,
    NORMS,
    Metadata,
    join_rows,
    read_mamba,
    rename,
    route,
    unpermute,
)
from .shared import Shapes, describe_decoder, list_attention, make_reader


def _describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        **describe_decoder(metadata, shapes),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "attention_multiplier": read("attention.scale"),
        "embedding_multiplier": read("embedding_scale"),
        "residual_multiplier": read("residual_scale"),
        "logits_scaling": read("logit_scale"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": read("rope.freq_base"),
        },
    }


def describe_dense(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        **_describe(metadata, shapes),
        "model_type": "granite",
        # Not the entry: files of Granite 4 have another width there.
        "intermediate_size": shapes["blk.0.ffn_gate.weight"][0],
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
        "head_dim": read("embedding_length") // read("attention.head_count"),
    }


def describe_hybrid(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    if read("rope.scaling.finetuned", False):
        raise Unreadable("it is a Bamba, or has rotary angles")
    num_heads = read("ssm.time_step_rank")
    num_experts = read("expert_count", 0)
    shared = "ffn_gate_shexp" if num_experts else "ffn_gate"
    return {
        **_describe(metadata, shapes),
        "model_type": "granitemoehybrid",
        "position_embedding_type": None,
        "layer_types": [
            "attention" if has_attention else "mamba"
            for has_attention in list_attention(metadata)
        ],
        "intermediate_size": read("feed_forward_length"),
        "shared_intermediate_size": shapes[f"blk.0.{shared}.weight"][0],
        "num_local_experts": num_experts,
        "num_experts_per_tok": read("expert_used_count", 0),
        "attention_bias": any(name.endswith("attn_q.bias") for name in shapes),
        "mamba_n_heads": num_heads,
        "mamba_d_head": read("ssm.inner_size") // num_heads,
        "mamba_n_groups": read("ssm.group_count"),
        "mamba_d_state": read("ssm.state_size"),
        "mamba_d_conv": read("ssm.conv_kernel"),
        "mamba_expand": read("ssm.inner_size") // read("embedding_length"),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in shapes),
        "mamba_proj_bias": any(name.endswith("ssm_in.bias") for name in shapes),
    }


def _read_attention(config: Any) -> Rules:
    """Return the rules of attention, whose rotary halves llama.cpp has interleaved."""
    rules = dict(ATTENTION)
    for short, num_heads in (
        ("q", config.num_attention_heads),
        ("k", config.num_key_value_heads),
    ):
        for kind in ("weight", "bias"):
            rules[f"attn_{short}.{kind}"] = Rule(
                name=f"self_attn.{short}_proj.{kind}", rows=unpermute(num_heads)
            )
    for short, name in (("v", "v_proj"), ("output", "o_proj")):
        rules[f"attn_{short}.bias"] = Rule(name=f"self_attn.{name}.bias")
    return rules


def read_dense(config: Any) -> Rules:
    biases = {
        f"ffn_{kind}.bias": Rule(name=f"mlp.{kind}_proj.bias")
        for kind in ("gate", "up", "down")
    }
    return {**ENDS, **NORMS, **_read_attention(config), **MLP, **biases}


def read_hybrid(config: Any) -> Rules:
    end = "_shexp" if config.num_local_experts else ""
    return {
        **ENDS,
        **NORMS,
        **_read_attention(config),
        **read_mamba("mamba"),
        **join_rows("shared_mlp.input_linear.weight", f"ffn_gate{end}", f"ffn_up{end}"),
        **rename({f"ffn_down{end}": "shared_mlp.output_linear"}),
        **route("block_sparse_moe", "router"),
    }
