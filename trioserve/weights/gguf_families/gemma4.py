"""Gemma 4: layers with windows, shared keys and values, per-layer embeddings, experts."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from torch import Tensor

from ...types.gguf_rules import Rule, Rules, Unreadable
from .rules import ATTENTION, ENDS, MLP, Metadata, rename
from .shared import Shapes, describe_decoder, make_reader

# The share of each head that full layers rotate. The header does not tell it, but the
# divisors of the angles do.
_ROTATED: Final = 0.25


def describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    fields = describe_decoder(metadata, shapes)
    windows = read("attention.sliding_window_pattern")
    if not isinstance(windows, list):
        raise Unreadable("its header does not list the layers with windows")
    heads, widths = read("attention.head_count_kv"), read("feed_forward_length")
    num_shared = read("attention.shared_kv_layers")
    full = [index for index, has_window in enumerate(windows) if not has_window]
    own = [index for index in full if index < len(windows) - num_shared]
    if isinstance(heads, list):
        fields["num_key_value_heads"] = heads[windows.index(True)]
        fields["num_global_key_value_heads"] = heads[full[0]]
    # A list has twice the width for layers that share keys and values.
    width = widths[0] if isinstance(widths, list) else widths
    return {
        **fields,
        **_describe_experts(metadata),
        "model_type": "gemma4_text",
        "layer_types": [
            "sliding_attention" if has_window else "full_attention"
            for has_window in windows
        ],
        "intermediate_size": width,
        "use_double_wide_mlp": isinstance(widths, list) and widths[-1] != width,
        "head_dim": read("attention.key_length_swa"),
        "global_head_dim": read("attention.key_length"),
        "num_kv_shared_layers": num_shared,
        "attention_k_eq_v": f"blk.{own[0]}.attn_v.weight" not in shapes,
        "sliding_window": read("attention.sliding_window"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": read("final_logit_softcapping", None),
        "hidden_size_per_layer_input": read("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": shapes.get(
            "per_layer_token_embd.weight", shapes["token_embd.weight"]
        )[0],
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": read("rope.freq_base_swa", 10_000.0),
            },
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _ROTATED,
                "rope_theta": read("rope.freq_base"),
            },
        },
    }


def _describe_experts(metadata: Metadata) -> dict[str, Any]:
    read = make_reader(metadata)
    if not read("expert_count", 0):
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": read("expert_count"),
        "top_k_experts": read("expert_used_count"),
        "moe_intermediate_size": read("expert_feed_forward_length"),
    }


def read(config: Any) -> Rules:
    rules = {
        **ENDS,
        **ATTENTION,
        **MLP,
        **rename(
            {
                **{"per_layer_token_embd": "model.embed_tokens_per_layer"},
                **{"per_layer_model_proj": "model.per_layer_model_projection"},
                **{"per_layer_proj_norm": "model.per_layer_projection_norm"},
                **{
                    "attn_q_norm": "self_attn.q_norm",
                    "attn_k_norm": "self_attn.k_norm",
                },
                **{"attn_norm": "input_layernorm"},
                **{"post_attention_norm": "post_attention_layernorm"},
                **{"ffn_norm": "pre_feedforward_layernorm"},
                **{"post_ffw_norm": "post_feedforward_layernorm"},
                **{"pre_ffw_norm_2": "pre_feedforward_layernorm_2"},
                **{"post_ffw_norm_1": "post_feedforward_layernorm_1"},
                **{"post_ffw_norm_2": "post_feedforward_layernorm_2"},
                **{"inp_gate": "per_layer_input_gate"},
                **{"proj": "per_layer_projection"},
                **{"post_norm": "post_per_layer_input_norm"},
                **{"ffn_gate_inp": "router.proj"},
            }
        ),
        "layer_output_scale.weight": Rule(name="layer_scalar"),
        "ffn_gate_inp.scale": Rule(name="router.scale"),
        "ffn_gate_up_exps.weight": Rule(name="experts.gate_up_proj"),
        "ffn_down_exps.weight": Rule(name="experts.down_proj"),
        "ffn_down_exps.scale": Rule(name="router.per_expert_scale"),
        "rope_freqs.weight": Rule(name="", undo=partial(_check_angles, config)),
    }
    # Files have them for layers that share the keys and values of others, too.
    for short, name in (("attn_k", "k_proj"), ("attn_v", "v_proj")):
        rules[f"{short}.weight"] = Rule(
            name=f"self_attn.{name}.weight", is_optional=True
        )
    rules["attn_k_norm.weight"] = Rule(name="self_attn.k_norm.weight", is_optional=True)
    return rules


def _check_angles(config: Any, divisors: Tensor) -> Tensor:
    """Check which angles of full layers are rotated: the first ones, by 1.

    Raises:
      Unreadable
    """
    num_rotated = int(2 * len(divisors) * _ROTATED) // 2
    if not (
        (divisors[:num_rotated] == 1).all() and (divisors[num_rotated:] > 1e20).all()
    ):
        raise Unreadable("other angles are rotated than in Gemma 4")
    return divisors
