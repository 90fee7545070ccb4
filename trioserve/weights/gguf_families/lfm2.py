"""LFM2 and its mixture of experts: short convolutions, with attention in some layers."""

from __future__ import annotations

from typing import Any, Final

from ...types.gguf_rules import Rule, Rules, Unreadable
from .rules import ATTENTION, Metadata, add_channel, rename, route
from .shared import Shapes, describe_decoder, list_attention, make_reader

_SIGMOID: Final = 2


def describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    return {
        **describe_decoder(metadata, shapes),
        "model_type": "lfm2",
        "intermediate_size": read("feed_forward_length"),
        # It is the final one.
        "block_auto_adjust_ff_dim": False,
        "layer_types": [
            "full_attention" if has_attention else "conv"
            for has_attention in list_attention(metadata)
        ],
        "norm_eps": read("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": read("shortconv.l_cache"),
        "conv_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": read("rope.freq_base"),
        },
    }


def describe_moe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    if read("expert_gating_func") != _SIGMOID:
        raise Unreadable("its experts are not chosen by sigmoids")
    fields = describe(metadata, shapes)
    del fields["block_auto_adjust_ff_dim"]
    return {
        **fields,
        "model_type": "lfm2_moe",
        "num_dense_layers": read("leading_dense_block_count"),
        "moe_intermediate_size": read("expert_feed_forward_length"),
        "num_experts": read("expert_count"),
        "num_experts_per_tok": read("expert_used_count"),
        "use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in shapes),
    }


def read(config: Any) -> Rules:
    return {
        **rename(
            {
                **{"token_embd": "model.embed_tokens", "output": "lm_head"},
                **{"token_embd_norm": "model.embedding_norm"},
                **{"attn_norm": "operator_norm", "ffn_norm": "ffn_norm"},
                **{"ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3"},
                **{"ffn_down": "feed_forward.w2"},
                **{"shortconv.in_proj": "conv.in_proj"},
                **{"shortconv.out_proj": "conv.out_proj"},
            }
        ),
        **ATTENTION,
        **rename(
            {
                **{"attn_output": "self_attn.out_proj"},
                **{"attn_q_norm": "self_attn.q_layernorm"},
                **{"attn_k_norm": "self_attn.k_layernorm"},
            }
        ),
        "shortconv.conv.weight": Rule(name="conv.conv.weight", undo=add_channel),
    }


def read_moe(config: Any) -> Rules:
    return {
        **read(config),
        **route("feed_forward", "gate"),
        "exp_probs_b.bias": Rule(name="feed_forward.expert_bias"),
    }
