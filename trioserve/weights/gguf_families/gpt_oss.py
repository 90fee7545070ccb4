"""gpt-oss: experts with biases, sinks of attention, and every second layer with a window.

Weights of experts are (num_experts, inputs, outputs) in transformers, and gates and up
projections take turns there. In the file, as for the kernels, outputs are rows, and the gates
of an expert stand before its up projections.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Final

import torch
from torch import Tensor

from ...types.gguf_rules import Rule, Rules, Unreadable
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
    sizes = describe_decoder(metadata, shapes, scaling="yarn")
    count, num_chosen = read("expert_count"), read("expert_used_count")
    if not 0 < num_chosen <= count:
        raise Unreadable(f"a token goes to {num_chosen} of {count} experts")
    factor = read("rope.scaling.factor")
    if not 0 < factor < math.inf:
        raise Unreadable(f"its rotary angles are scaled by {factor}")
    return {
        **sizes,
        "model_type": "gpt_oss",
        # No header lists the layers with windows: as in transformers, they are the first,
        # the third and so on.
        "sliding_window": read("attention.sliding_window"),
        "head_dim": read("attention.key_length"),
        "intermediate_size": read("expert_feed_forward_length"),
        "num_local_experts": count,
        "num_experts_per_tok": num_chosen,
        "rms_norm_eps": read("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": read("rope.freq_base"),
            "factor": factor,
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
        **{
            f"ffn_{short}_exps.weight": Rule(
                name=gate_up, part=part, join=_join, form=_interleave_outputs
            )
            for part, short in enumerate(("gate", "up"))
        },
        "ffn_down_exps.weight": Rule(name="mlp.experts.down_proj", form=_transpose),
        "ffn_gate_exps.bias": Rule(name=f"{gate_up}_bias", part=0, join=_interleave),
        "ffn_up_exps.bias": Rule(name=f"{gate_up}_bias", part=1, join=_interleave),
        "ffn_down_exps.bias": Rule(name="mlp.experts.down_proj_bias"),
    }


def _match(parts: Sequence[Tensor]) -> list[Tensor]:
    if len(parts) != 2 or parts[0].shape != parts[1].shape:
        raise Unreadable("the gates of experts do not match their up projections")
    return [*parts]


def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(_match(parts), dim=-2)


def _interleave(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(_match(parts), dim=-1).flatten(-2)


def _transpose(weights: Tensor) -> Tensor:
    return weights.transpose(1, 2).contiguous()


def _interleave_outputs(weights: Tensor) -> Tensor:
    """Let gates and up projections take turns as columns, from rows in two halves."""
    return _interleave(weights.transpose(1, 2).chunk(2, dim=-1))
