"""Nemotron-H and Nemotron 3: one mixer a layer, of Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from typing import Any

from ...types.gguf_rules import Rule, Rules, Unreadable
from .rules import ENDS, Metadata, read_mamba, rename, unpermute
from .shared import Shapes, describe_decoder, list_attention, make_reader


def describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    return _describe(metadata, shapes, "mlp")


def describe_moe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    if read("expert_group_count", 1) > 1:
        raise Unreadable("its experts are in groups")
    return {
        **_describe(metadata, shapes, "moe"),
        "n_routed_experts": read("expert_count"),
        "n_shared_experts": read("expert_shared_count"),
        "num_experts_per_tok": read("expert_used_count"),
        "moe_intermediate_size": read("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": read(
            "expert_shared_feed_forward_length"
        ),
        "moe_latent_size": read("moe_latent_size", None),
        "norm_topk_prob": read("expert_weights_norm"),
        "routed_scaling_factor": read("expert_weights_scale"),
    }


def _describe(metadata: Metadata, shapes: Shapes, wide: str) -> dict[str, Any]:
    """Return the fields of a configuration.

    Args:
      wide: the type of layers that have a width.
    """
    read = make_reader(metadata)
    fields = describe_decoder(metadata, shapes)
    widths = read("feed_forward_length")
    num_layers = fields.pop("num_hidden_layers")
    kinds = [
        "attention" if has_attention else wide if width else "mamba"
        for has_attention, width in zip(list_attention(metadata), widths)
    ][:num_layers]
    num_heads = read("ssm.time_step_rank")
    return {
        **fields,
        "model_type": "nemotron_h",
        "layers_block_type": kinds,
        "head_dim": read("attention.key_length"),
        "intermediate_size": max(widths),
        "layer_norm_epsilon": read("attention.layer_norm_rms_epsilon"),
        "ssm_state_size": read("ssm.state_size"),
        "mamba_num_heads": num_heads,
        "mamba_head_dim": read("ssm.inner_size") // num_heads,
        "n_groups": read("ssm.group_count"),
        "conv_kernel": read("ssm.conv_kernel"),
        "use_conv_bias": _has(shapes, "ssm_conv1d.bias"),
        "mamba_proj_bias": _has(shapes, "ssm_in.bias"),
        "attention_bias": _has(shapes, "attn_q.bias"),
        "mlp_bias": _has(shapes, "ffn_up.bias"),
    }


def _has(shapes: Shapes, short: str) -> bool:
    return any(name.endswith(f".{short}") for name in shapes)


def read(config: Any) -> Rules:
    modules = {
        **{"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj"},
        **{"attn_output": "o_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"},
    }
    rules = {
        **ENDS,
        **rename(
            {
                **{"token_embd": "model.embeddings", "output_norm": "model.norm_f"},
                "attn_norm": "norm",
            }
        ),
        **read_mamba("mixer"),
        **{
            f"{short}.{kind}": Rule(name=f"mixer.{name}.{kind}")
            for short, name in modules.items()
            for kind in ("weight", "bias")
        },
    }
    for short, num_heads in (
        ("q", config.num_attention_heads),
        ("k", config.num_key_value_heads),
    ):
        name = f"mixer.{short}_proj.weight"
        rules[f"attn_{short}.weight"] = Rule(name=name, rows=unpermute(num_heads))
    return rules


def read_moe(config: Any) -> Rules:
    return {
        **read(config),
        **rename(
            {
                **{"ffn_gate_inp": "mixer.gate"},
                **{"ffn_up_shexp": "mixer.shared_experts.up_proj"},
                **{"ffn_down_shexp": "mixer.shared_experts.down_proj"},
                **{"ffn_latent_down": "mixer.fc1_latent_proj"},
                **{"ffn_latent_up": "mixer.fc2_latent_proj"},
            }
        ),
        "exp_probs_b.bias": Rule(name="mixer.gate.e_score_correction_bias"),
        "ffn_up_exps.weight": Rule(name="mixer.experts.up_proj"),
        "ffn_down_exps.weight": Rule(name="mixer.experts.down_proj"),
    }
