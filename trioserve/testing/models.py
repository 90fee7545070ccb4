"""Tiny models with seeded random weights, for tests that must really compute.

    folder = save_tiny_model("gemma3_text", tmp_path / "model")
    folder = save_tiny_vision_model("qwen2_vl", tmp_path / "with_processor")

Part of the shipped test kit. torch and transformers are imported inside functions:
importing this module costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Small enough that a step takes a millisecond, but with the differences between
# architectures: grouped heads, head dimensions that are not hidden_size / num_heads,
# windows shorter than the sequences of tests, tied and untied output projections.
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
    # With weights of this size one token is clearly the likeliest, so rounding cannot
    # change the greedy choice.
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
        # The model multiplies its embeddings by a large factor. With tied embeddings it
        # would repeat one token for ever.
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
    # Full attention has wider heads, fewer of keys, and its keys are its values, too.
    "gemma4_text": {
        **_COMMON,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
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
    # Its first layer has one network, its second has experts and a shared one.
    "qwen2_moe": {
        **_COMMON,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 39,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [0],
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
    # Latents in place of keys and values; its second layer has experts in two groups.
    "deepseek_v3": {
        **_COMMON,
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}

# Models whose layers keep states: Gated DeltaNet, short convolutions, Kimi delta attention,
# and Mamba-2 beside attention.
TINY_HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        **_COMMON,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
    },
    "lfm2": {
        **_COMMON,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "kimi_linear": {
        **_COMMON,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 32,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 2,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
    },
    "falcon_h1": {
        **_COMMON,
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 2,
        "mamba_chunk_size": 8,
    },
}
TINY_MODELS |= TINY_HYBRIDS

# The text part of vision models: wide enough that the vectors of an image influence the
# output, in spite of the tokens around them.
_VISION_COMMON: dict[str, Any] = {
    **_COMMON,
    # processors.VOCAB_SIZE
    "vocab_size": 640,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_VISION_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.4,
}

# Some vectors of an image come from an earlier layer of its encoder.
_DEEP_TOWER: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.4,
}

# Qwen3.5: half of a head is rotated, and the encoder has one output.
_HYBRID_TEXT: dict[str, Any] = {
    **TINY_HYBRIDS["qwen3_5_text"],
    **_VISION_COMMON,
    "rope_parameters": {
        **_MROPE,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
}
_TOWER_OF_3_5 = {
    name: value
    for name, value in _DEEP_TOWER.items()
    if name != "deepstack_visual_indexes"
}

# Patches and images have the sizes of processors.py.
TINY_VISION_MODELS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": {**_VISION_COMMON, "rope_parameters": _MROPE},
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "mlp_ratio": 2,
            "initializer_range": 0.4,
        },
    },
    "qwen2_5_vl": {
        "text_config": {**_VISION_COMMON, "rope_parameters": _MROPE},
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_heads": 2,
            # In the first layer only groups of 2 x 2 vectors attend to each other, in
            # the second layer all vectors do.
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.4,
        },
        "tie_word_embeddings": True,
    },
    "qwen3_5": {
        "text_config": _HYBRID_TEXT,
        "vision_config": _TOWER_OF_3_5,
    },
    "qwen3_5_moe": {
        "text_config": {
            **_HYBRID_TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
        "vision_config": _TOWER_OF_3_5,
    },
    "qwen3_vl": {
        "text_config": {**_VISION_COMMON, "head_dim": 16, "rope_parameters": _MROPE},
        "vision_config": _DEEP_TOWER,
        "tie_word_embeddings": True,
    },
    "qwen3_vl_moe": {
        "text_config": {
            **_VISION_COMMON,
            "head_dim": 16,
            "rope_parameters": _MROPE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        "vision_config": _DEEP_TOWER,
    },
    "glm4v": {
        "text_config": {**_VISION_COMMON, "rope_parameters": _MROPE},
        "vision_config": {
            **_DEEP_TOWER,
            "image_size": 56,
            "intermediate_size": 64,
        },
    },
    "glm4v_moe": {
        "text_config": {
            **_VISION_COMMON,
            "head_dim": 16,
            "rope_parameters": {
                **_MROPE,
                "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 2],
            },
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
        },
        "vision_config": {
            **_DEEP_TOWER,
            "image_size": 56,
            "intermediate_size": 64,
        },
    },
    "smolvlm": {
        "text_config": {"model_type": "llama", **_VISION_COMMON},
        "vision_config": {**_VISION_TOWER, "image_size": 64, "patch_size": 16},
        "scale_factor": 2,
    },
    "idefics3": {
        "text_config": {"model_type": "llama", **_VISION_COMMON},
        "vision_config": {**_VISION_TOWER, "image_size": 64, "patch_size": 16},
        "scale_factor": 2,
        "tie_word_embeddings": True,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **_VISION_COMMON},
        "vision_config": {
            **_VISION_TOWER,
            "image_size": [56, 56],
            "patch_size": [14, 14],
        },
        "image_seq_length": 4,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **_VISION_COMMON},
        "vision_config": {
            "model_type": "pixtral",
            **_VISION_TOWER,
            "head_dim": 16,
            "image_size": 112,
            "patch_size": 14,
        },
    },
    "gemma3": {
        "text_config": {
            **_VISION_COMMON,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            # An image is longer.
            "sliding_window": 7,
        },
        "vision_config": {**_VISION_TOWER, "image_size": 64, "patch_size": 8},
        "mm_tokens_per_image": 16,
        "tie_word_embeddings": False,
    },
    "gemma4": {
        "text_config": {
            **TINY_MODELS["gemma4_text"],
            **_VISION_COMMON,
            "layer_types": ["sliding_attention", "full_attention"],
            "use_bidirectional_attention": "vision",
            "sliding_window": 9,
        },
        "vision_config": {
            **_VISION_TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 256,
        },
        "tie_word_embeddings": False,
    },
    "llava": {
        "text_config": {"model_type": "llama", **_VISION_COMMON},
        "vision_config": {
            "model_type": "clip_vision_model",
            **_VISION_TOWER,
            "projection_dim": 32,
            "image_size": 56,
            "patch_size": 14,
        },
    },
    "llava_next": {
        "text_config": {"model_type": "mistral", **_VISION_COMMON},
        "vision_config": {
            "model_type": "clip_vision_model",
            **_VISION_TOWER,
            "projection_dim": 32,
            "image_size": 56,
            "patch_size": 14,
        },
        "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]],
    },
    "vipllava": {
        "text_config": {"model_type": "llama", **_VISION_COMMON},
        "vision_config": {
            "model_type": "clip_vision_model",
            **_VISION_TOWER,
            "projection_dim": 32,
            "image_size": 56,
            "patch_size": 14,
        },
        "vision_feature_layers": [-1, 1],
    },
}

# Field of the configuration -> the names of its token in different tokenizers.
_VISION_TOKENS: dict[str, tuple[str, ...]] = {
    "image_token_id": (
        "<|image_pad|>",
        "<image>",
        "<IMG_CONTEXT>",
        "[IMG]",
        "<|image|>",
        "<image_soft_token>",
    ),
    "boi_token_id": ("<start_of_image>",),
    "audio_token_id": ("<audio_soft_token>",),
    "eoi_token_id": ("<end_of_image>",),
    "video_token_id": ("<|video_pad|>", "<|video|>"),
    "vision_start_token_id": ("<|vision_start|>",),
    "vision_end_token_id": ("<|vision_end|>",),
}


def save_tiny_model(
    model_type: str, folder: Path, *, seed: int = 0, **changes: object
) -> Path:
    """Save a model with random weights by `save_pretrained`.

    Args:
      model_type: a key of TINY_MODELS.
      folder: the target; it is created if it does not exist.
      seed: seed of the weights.
      changes: fields of the configuration that replace fields of TINY_MODELS.

    Returns:
      folder
    """
    make_tiny_model(model_type, seed, **changes).save_pretrained(folder)
    return folder


def make_tiny_model(model_type: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Make the model that save_tiny_model saves."""
    from transformers import AutoConfig, AutoModelForCausalLM

    # A configuration keeps its lists, and Gemma 4's changes them.
    fields = deepcopy(TINY_MODELS[model_type] | changes)
    config = AutoConfig.for_model(model_type, **fields)
    return _make_random(AutoModelForCausalLM.from_config, config, seed)


def save_tiny_vision_model(
    model_type: str,
    folder: Path,
    *,
    seed: int = 0,
    **changes: Mapping[str, object] | object,
) -> Path:
    """Save a vision model in a folder that has a processor already.

    Args:
      model_type: a key of TINY_VISION_MODELS.
      folder: the folder that save_tiny_processor returned; idefics3 uses the processor
        of smolvlm.
      seed: seed of the weights.
      changes: fields of the configuration that replace fields of TINY_VISION_MODELS. In
        text_config and vision_config, only the given fields are replaced.

    Returns:
      folder, which then has a complete model.
    """
    model = make_tiny_vision_model(model_type, folder, seed, **changes)
    model.save_pretrained(folder)
    return folder


def make_tiny_vision_model(
    model_type: str, folder: Path, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Make the model that save_tiny_vision_model saves."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    fields = {**TINY_VISION_MODELS[model_type], **_read_token_ids(folder)}
    for name, change in changes.items():
        if isinstance(change, Mapping):
            change = {**fields[name], **change}
        fields[name] = change
    config = AutoConfig.for_model(model_type, **deepcopy(fields))
    return _make_random(AutoModelForImageTextToText.from_config, config, seed)


def _read_token_ids(folder: Path) -> dict[str, int]:
    described = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in described["added_tokens"]}
    return {
        field: ids[name]
        for field, names in _VISION_TOKENS.items()
        for name in names
        if name in ids
    }


def _make_random(build: Any, config: Any, seed: int) -> PreTrainedModel:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = build(config, dtype=torch.float32)
        for name, weight in model.named_parameters():
            # Gemma 3's images would all be alike.
            if name.endswith("mm_input_projection_weight"):
                torch.nn.init.normal_(weight, std=0.4)
    return model
