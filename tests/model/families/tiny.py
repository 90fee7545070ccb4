"""Tiny random configurations of any model type that transformers knows."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers import PreTrainedConfig

# Sizes by the names that configurations have for them; each type takes those that it knows.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 131),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim"), 64),
    **dict.fromkeys(("word_embed_proj_dim", "embedding_size", "n_positions_embd"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "dff"), 48),
    **dict.fromkeys(("ffn_hidden_size", "dim_ff", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(
        ("shared_expert_intermediate_size", "shared_intermediate_size"), 24
    ),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_head_kv", "num_kv_heads"), 2),
    **dict.fromkeys(("attention_head_dim", "head_dim", "kv_channels", "d_kv"), 16),
    **dict.fromkeys(("global_head_dim", "swa_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 8),
    "rotary_dim": 8,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k"), 2),
    **dict.fromkeys(
        ("moe_topk", "moe_top_k", "top_k_experts", "num_experts_per_topk"), 2
    ),
    **dict.fromkeys(
        ("n_group", "topk_group", "num_expert_group", "n_shared_experts"), 1
    ),
    **dict.fromkeys(
        ("first_k_dense_replace", "num_dense_layers", "zero_expert_num"), 1
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 512),
    **dict.fromkeys(("max_sequence_length", "max_seq_len", "seq_length"), 512),
    **dict.fromkeys(("max_target_positions", "prompt_length"), 512),
    # Shorter than the prompts, so that each border is crossed.
    **dict.fromkeys(
        ("sliding_window", "attention_chunk_size", "local_window_size"), 24
    ),
    **dict.fromkeys(("sliding_window_size", "window_size"), 24),
    # States.
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_num_value_heads", "linear_conv_kernel_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_chunk_size"), 8),
    "mamba_d_head": 16,
    **dict.fromkeys(("ssm_state_size", "chunk_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("conv_L_cache",), 3),
    **dict.fromkeys(("index_topk",), 448),
    **dict.fromkeys(("index_n_heads",), 2),
    **dict.fromkeys(("index_head_dim",), 16),
    "hidden_size_per_layer_input": 8,
    # Llama 4: the temperature changes within the shortest prompt and answer.
    "floor_scale": 8,
    "laurel_rank": 8,
    "altup_num_inputs": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "type_vocab_size": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "hidden_dropout": 0.0,
    "use_cache": True,
    "dtype": "float32",
}

# Fields that only one type has, or that must fit each other.
_TYPES = ["linear_attention", "full_attention"] * 2
EXCEPTIONS: dict[str, dict[str, Any]] = {
    # Wider, these would write one token for ever.
    **dict.fromkeys(("bert", "ernie", "roberta", "camembert"), {"hidden_size": 32}),
    **dict.fromkeys(("data2vec-text", "xlm-roberta"), {"hidden_size": 32}),
    "bailing_hybrid": {"layer_types": _TYPES},
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    # Dense: the class may have states, and this configuration has none.
    "granitemoehybrid": {"layer_types": ["full_attention"] * 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {
        "layer_types": _TYPES,
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
            "kda_layers": [1, 3],
            "full_attn_layers": [2, 4],
        },
    },
    "mamba2": {"num_heads": 8},
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    # transformers bounds the time steps of prompts by it, and we do not (step_limits.py).
    "nemotron_h": {"time_step_min": 1e-9, "time_step_floor": 1e-3},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 64},
    "xlnet": {"d_inner": 48},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def make_tiny(config_class: type[PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    """Return a tiny configuration of a type.

    Raises:
      Any error of its constructor: sizes that do not fit each other.
    """
    model_type = config_class.model_type
    fields = choose_fields(config_class) | EXCEPTIONS.get(model_type, {}) | changes
    return config_class(**fields)


def choose_fields(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Return tiny values for the fields that a type has."""
    names = {field.name for field in dataclasses.fields(config_class)}  # type: ignore
    names |= set(config_class.attribute_map)
    fields = {name: size for name, size in _SIZES.items() if name in names}
    if "kv_lora_rank" in names and "num_key_value_heads" in names:
        # With a latent, each head has keys of its own.
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    for part, sub in config_class.sub_configs.items():
        if part in names and dataclasses.is_dataclass(sub):
            fields[part] = choose_fields(sub) | EXCEPTIONS.get(sub.model_type, {})
    return fields
