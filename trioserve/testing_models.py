"""Tiny models with seeded random weights, for tests that must really compute.

    folder = save_tiny_model("gemma3_text", tmp_path / "model")

Part of the shipped test kit. torch and transformers are imported inside functions:
importing this module costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Small enough for a step in a millisecond, with what makes architectures differ left
# in: grouped heads, head dimensions that are not hidden_size / num_heads, windows
# shorter than the sequences that tests write, tied and untied output projections.
_COMMON: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Embeddings and projections of this size make some token clearly the likeliest,
    # so that rounding does not decide what is greedy.
    "initializer_range": 0.4,
}

_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "tie_word_embeddings": True},
    "qwen2": {**_COMMON, "vocab_size": 97, "num_key_value_heads": 1},
    "qwen3": {**_COMMON, "head_dim": 16, "vocab_size": 151},
    "mistral": {**_COMMON, "sliding_window": 8},
    "gemma2": {
        **_COMMON,
        "num_hidden_layers": 3,
        "layer_types": _SLIDING,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        # Its embeddings are scaled up: tied ones would repeat one token for ever.
        "tie_word_embeddings": False,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
    },
    "gemma3_text": {
        **_COMMON,
        "num_hidden_layers": 3,
        "layer_types": _SLIDING,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "tie_word_embeddings": False,
    },
    "phi3": {**_COMMON, "sliding_window": 8, "tie_word_embeddings": False},
    "gpt2": {
        "vocab_size": 113,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.4,
    },
    "gpt_neox": {**_COMMON, "rotary_pct": 0.5, "vocab_size": 101},
    "mixtral": {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **_COMMON,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        **_COMMON,
        "head_dim": 16,
        "layer_types": _SLIDING[:2],
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def save_tiny_model(
    model_type: str, folder: Path, *, seed: int = 0, **changes: object
) -> Path:
    """Save a model with random weights the way `save_pretrained` does.

    Args:
      model_type: a key of TINY_MODELS.
      folder: created where it does not exist.
      seed: of the weights.
      changes: fields of the configuration to set otherwise.

    Returns:
      folder
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    config = AutoConfig.for_model(model_type, **{**TINY_MODELS[model_type], **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder
