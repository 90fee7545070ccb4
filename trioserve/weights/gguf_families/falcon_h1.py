"""Falcon-H1: attention and Mamba-2 side by side in each layer.

llama.cpp multiplies its weights by the model's many factors, so all of them are 1 here.
"""

from __future__ import annotations

from typing import Any

from ...types.gguf_rules import Rule, Rules, Unreadable
from .rules import ATTENTION, ENDS, Metadata, read_mamba, rename
from .shared import Shapes, describe_decoder, make_reader


def describe(metadata: Metadata, shapes: Shapes) -> dict[str, Any]:
    read = make_reader(metadata)
    fields = describe_decoder(metadata, shapes)
    if fields["tie_word_embeddings"]:
        # The embedding's factor is in it, and nothing tells the factor of the output.
        raise Unreadable("it has no output projection of its own")
    num_heads = read("ssm.time_step_rank")
    return {
        **fields,
        "model_type": "falcon_h1",
        "head_dim": read("attention.key_length"),
        "intermediate_size": read("feed_forward_length"),
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": read("rope.freq_base"),
        },
        "mamba_d_ssm": read("ssm.inner_size"),
        "mamba_n_heads": num_heads,
        "mamba_d_head": read("ssm.inner_size") // num_heads,
        "mamba_n_groups": read("ssm.group_count"),
        "mamba_d_state": read("ssm.state_size"),
        "mamba_d_conv": read("ssm.conv_kernel"),
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in shapes,
        "mamba_proj_bias": "blk.0.ssm_in.bias" in shapes,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in shapes,
        # As llama.cpp computes it.
        "mamba_norm_before_gate": False,
        "embedding_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "key_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


def read(config: Any) -> Rules:
    return {
        **ENDS,
        **ATTENTION,
        **read_mamba("mamba"),
        **rename(
            {
                **{"output_norm": "model.final_layernorm"},
                **{"attn_norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm"},
                **{"ffn_gate": "feed_forward.gate_proj"},
                **{"ffn_up": "feed_forward.up_proj"},
                **{"ffn_down": "feed_forward.down_proj"},
            }
        ),
        # llama.cpp's table has this name with its suffix, and so files have it without.
        "ffn_norm": Rule(name="pre_ff_layernorm.weight"),
    }
