"""Qwen3-Next and Qwen3.5: Gated DeltaNet, with attention in every fourth layer.

Files of Qwen3.5 have the value heads of a layer in another order: one of each key head
after the other ("tiled"), not all of one key head together ("grouped").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...types.gguf_rules import Rule, Rules
from .rules import (
    ATTENTION,
    ENDS,
    MLP,
    Metadata,
    add_channel,
    log_negative,
    rename,
    route,
    subtract_one,
)
from .shared import Shapes, describe_decoder, make_reader


def _describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    fields = describe_decoder(metadata, shapes)
    interval = read("full_attention_interval")
    num_values = read("ssm.time_step_rank")
    head_dim = read("attention.key_length")
    return {
        **fields,
        "head_dim": head_dim,
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "layer_types": [
            "linear_attention" if (index + 1) % interval else "full_attention"
            for index in range(fields["num_hidden_layers"])
        ],
        "linear_conv_kernel_dim": read("ssm.conv_kernel"),
        "linear_key_head_dim": read("ssm.state_size"),
        "linear_num_key_heads": read("ssm.group_count"),
        "linear_num_value_heads": num_values,
        "linear_value_head_dim": read("ssm.inner_size") // num_values,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": read("rope.freq_base"),
            "partial_rotary_factor": read("rope.dimension_count") / head_dim,
        },
    }


def _describe_experts(metadata: Metadata) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        "moe_intermediate_size": read("expert_feed_forward_length"),
        "shared_expert_intermediate_size": read("expert_shared_feed_forward_length"),
        "num_experts": read("expert_count"),
        "num_experts_per_tok": read("expert_used_count"),
    }


def describe_35(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    fields = _describe(metadata, shapes)
    sections = [count for count in read("rope.dimension_sections") if count]
    rotary = {"mrope_section": sections, "mrope_interleaved": True}
    fields["rope_parameters"] |= rotary
    width = read("feed_forward_length", None)
    return {
        **fields,
        "model_type": "qwen3_5_text",
        **({} if width is None else {"intermediate_size": width}),
    }


def describe_35_moe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    return {
        **describe_35(metadata, shapes),
        **_describe_experts(metadata),
        "model_type": "qwen3_5_moe_text",
    }


def describe_next(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        **_describe(metadata, shapes),
        **_describe_experts(metadata),
        "model_type": "qwen3_next",
        "intermediate_size": read("feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _read_layers() -> Rules:
    """Return the rules that all of these models have; most of their norms are raised by 1."""
    raised = {
        **{"output_norm": "model.norm", "attn_norm": "input_layernorm"},
        **{"post_attention_norm": "post_attention_layernorm"},
        **{"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    }
    return {
        **ENDS,
        **ATTENTION,
        **MLP,
        **{
            f"{short}.weight": Rule(name=f"{name}.weight", undo=subtract_one)
            for short, name in raised.items()
        },
        **rename({"ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj"}),
        "ssm_conv1d.weight": Rule(name="linear_attn.conv1d.weight", undo=add_channel),
        "ssm_a": Rule(name="linear_attn.A_log", undo=log_negative),
        "ssm_dt.bias": Rule(name="linear_attn.dt_bias"),
    }


def _read_experts() -> Rules:
    shared = "mlp.shared_expert"
    return {
        **route("mlp", "gate"),
        **rename(
            {
                **{"ffn_gate_shexp": f"{shared}.gate_proj"},
                **{"ffn_up_shexp": f"{shared}.up_proj"},
                **{"ffn_down_shexp": f"{shared}.down_proj"},
            }
        ),
        "ffn_gate_inp_shexp.weight": Rule(
            name=f"{shared}_gate.weight", undo=lambda numbers: numbers.reshape(1, -1)
        ),
    }


def read_35(config: Any) -> Rules:
    num_keys = config.linear_num_key_heads
    per_key = config.linear_num_value_heads // num_keys
    rows = partial(_group, num_keys=num_keys, per_key=per_key)
    # The rows of queries and keys stand before those of the values.
    skipped = 2 * num_keys * config.linear_key_head_dim

    def group_values(numbers: Tensor) -> Tensor:
        values = rows(numbers[skipped:])
        return torch.cat([numbers[:skipped], values])

    changed: dict[str, Rule] = {
        "attn_qkv.weight": Rule(name="in_proj_qkv.weight", rows=group_values),
        "attn_gate.weight": Rule(name="in_proj_z.weight", rows=rows),
        "ssm_alpha.weight": Rule(name="in_proj_a.weight", rows=rows),
        "ssm_beta.weight": Rule(name="in_proj_b.weight", rows=rows),
        "ssm_a": Rule(name="A_log", rows=rows, undo=log_negative),
        "ssm_dt.bias": Rule(name="dt_bias", rows=rows),
        "ssm_conv1d.weight": Rule(
            name="conv1d.weight", rows=group_values, undo=add_channel
        ),
        "ssm_out.weight": Rule(name="out_proj.weight", columns=rows),
    }
    return {
        **_read_layers(),
        **{
            short: replace(rule, name=f"linear_attn.{rule.name}")
            for short, rule in changed.items()
        },
    }


def read_35_moe(config: Any) -> Rules:
    return {**read_35(config), **_read_experts()}


def read_next(config: Any) -> Rules:
    join = partial(_interleave, config)
    name = "linear_attn.in_proj_qkvz.weight"
    return {
        **_read_layers(),
        **_read_experts(),
        **rename({"ssm_ba": "linear_attn.in_proj_ba"}),
        "attn_qkv.weight": Rule(name=name, part=0, join=join),
        "attn_gate.weight": Rule(name=name, part=1, join=join),
    }


def _group(numbers: Tensor, *, num_keys: int, per_key: int) -> Tensor:
    """Order the rows of value heads by their key heads, from tiled to grouped."""
    tiled = numbers.reshape(per_key, num_keys, -1, *numbers.shape[1:])
    return tiled.swapaxes(0, 1).reshape(numbers.shape)


def _interleave(config: Any, parts: Sequence[Tensor]) -> Tensor:
    """Join queries, keys, values and gates by key heads: [q, k, v..., z...] of each.

    Args:
      parts: (rows of q, k and v, hidden) and (rows of z, hidden).
    """
    qkv, z = parts
    num_keys = config.linear_num_key_heads
    width = num_keys * config.linear_key_head_dim
    q, k, v = qkv[:width], qkv[width : 2 * width], qkv[2 * width :]
    heads = [each.reshape(num_keys, -1, qkv.shape[1]) for each in (q, k, v, z)]
    return torch.cat(heads, dim=1).reshape(-1, qkv.shape[1])
