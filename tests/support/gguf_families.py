"""Writes tiny models of llama.cpp's newer families as GGUF files.

The files are written as llama.cpp's conversion/*.py do. The package gguf knows the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import logging
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Kind, GGUFWriter
from gguf_blocks import draw_blocks
import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

Change = Callable[[Any, str, Tensor], Iterator[tuple[str, Tensor]]]

SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
}
ROTARY = {"rope_type": "default", "rope_theta": 5000.0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_experts": 4}
DELTA = {
    **{"num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2},
    **{"linear_num_value_heads": 6, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 4, "linear_conv_kernel_dim": 4},
    **{"rms_norm_eps": 1e-5},
}
SHARED_EXPERT = {"shared_expert_intermediate_size": 24}
MROPE = {**ROTARY, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
GRANITE = {
    **{"attention_multiplier": 0.3, "embedding_multiplier": 2.0},
    **{"residual_multiplier": 0.5, "logits_scaling": 3.0, "rms_norm_eps": 1e-5},
}
MAMBA = {
    **{"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16},
    **{"mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2},
}
KINDS = ["sliding_attention", "full_attention"]
GEMMA = {
    **{"intermediate_size": 48, "head_dim": 16, "global_head_dim": 32},
    **{"sliding_window": 16, "final_logit_softcapping": 30.0},
}
NEMOTRON = {
    **{"intermediate_size": 48, "head_dim": 16, "mamba_num_heads": 8},
    **{"mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0},
    **{"original_max_position_embeddings": 64, "truncate": False},
    **{"beta_fast": 32.0, "beta_slow": 1.0},
}
HYBRID = {
    **{"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"]},
    **{"intermediate_size": 24, "shared_intermediate_size": 40},
    **{"position_embedding_type": None, "rope_parameters": ROTARY},
}

# llama.cpp's architecture -> transformers' type of a model, and its sizes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "lfm2",
        {
            **{"num_hidden_layers": 3, "intermediate_size": 48, "conv_L_cache": 3},
            **{"layer_types": ["conv", "full_attention", "conv"]},
            **{"block_auto_adjust_ff_dim": False, "rope_parameters": ROTARY},
        },
    ),
    "lfm2moe": (
        "lfm2_moe",
        {
            **{"num_hidden_layers": 3, "intermediate_size": 48, "conv_L_cache": 3},
            **{"layer_types": ["conv", "full_attention", "conv"]},
            **{"num_dense_layers": 1, "rope_parameters": ROTARY, **EXPERTS},
        },
    ),
    "granite": (
        "granite",
        {
            **GRANITE,
            **{"num_hidden_layers": 2, "intermediate_size": 48},
            **{"rope_parameters": ROTARY, "tie_word_embeddings": True},
        },
    ),
    "granitehybrid": (
        "granitemoehybrid",
        {**GRANITE, **MAMBA, **HYBRID, "num_local_experts": 0},
    ),
    "granitehybrid with experts": (
        "granitemoehybrid",
        {
            **{**GRANITE, **MAMBA, **HYBRID},
            **{"num_local_experts": 4, "num_experts_per_tok": 2},
        },
    ),
    "falcon-h1": (
        "falcon_h1",
        {
            **{**MAMBA, "mamba_d_ssm": 64, "num_hidden_layers": 2, "head_dim": 16},
            **{"intermediate_size": 48, "rope_parameters": ROTARY},
            **{"embedding_multiplier": 2.0, "lm_head_multiplier": 0.5},
            **{"key_multiplier": 0.7, "attention_in_multiplier": 1.5},
            **{"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.2},
            **{"ssm_out_multiplier": 0.8, "mlp_multipliers": [1.1, 0.6]},
            **{"ssm_multipliers": [0.5, 1.5, 0.8, 1.2, 0.9]},
            **{"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **{**GEMMA, "num_hidden_layers": 4, "layer_types": [*KINDS, *KINDS]},
            **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
            **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64},
        },
    ),
    "gemma4 with experts": (
        "gemma4_text",
        {
            **{**GEMMA, "num_hidden_layers": 2, "layer_types": KINDS},
            **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
            **{"hidden_size_per_layer_input": 0, "enable_moe_block": True},
            **{"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            **{"num_hidden_layers": 3, "intermediate_size": 64, "head_dim": 16},
            **{"sliding_window": 16, "rope_parameters": YARN},
            **{"num_local_experts": 4, "num_experts_per_tok": 2},
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {**NEMOTRON, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
    ),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            **{**NEMOTRON, "layers_block_type": ["mamba", "attention", "moe", "moe"]},
            **{"n_routed_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 16, "moe_latent_size": 8},
            **{"moe_shared_expert_intermediate_size": 24},
            **{"routed_scaling_factor": 2.5, "norm_topk_prob": True},
        },
    ),
    "qwen35": (
        "qwen3_5_text",
        {**DELTA, "intermediate_size": 48, "rope_parameters": MROPE},
    ),
    "qwen35moe": (
        "qwen3_5_moe_text",
        {**DELTA, **EXPERTS, **SHARED_EXPERT, "rope_parameters": MROPE},
    ),
    "qwen3next": (
        "qwen3_next",
        {
            **{**DELTA, **EXPERTS, **SHARED_EXPERT, "intermediate_size": 48},
            "rope_parameters": {**ROTARY, "partial_rotary_factor": 0.5},
        },
    ),
}


def make_model(family: str, **changes: Any) -> PreTrainedModel:
    model_type, sizes = MODELS[family]
    config = AutoConfig.for_model(model_type, **{**SIZES, **sizes, **changes})
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    # Zeros and ones would hide a wrong place or a wrong change.
    for name, numbers in model.state_dict().items():
        if numbers.dim() == 1:
            middle = 1.0 if name.endswith(("A_log", "D", "norm.weight")) else 0.0
            torch.nn.init.normal_(numbers, middle, 0.2)
        else:
            torch.nn.init.normal_(numbers, 0.0, 0.2)
    model.tie_weights()
    return model.eval()


def regroup(numbers: Tensor, config: Any, size: int) -> Tensor:
    """Put the value heads of Qwen3.5 in llama.cpp's order, along the first dimension."""
    num_keys = config.linear_num_key_heads
    shape = (num_keys, config.linear_num_value_heads // num_keys, size)
    return (
        numbers.reshape(*shape, *numbers.shape[1:])
        .transpose(0, 1)
        .reshape(numbers.shape)
    )


def change_delta(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Change a tensor of Qwen3-Next, or of Qwen3.5, whose value heads move, too."""
    is_next = config.model_type == "qwen3_next"
    leaf = name.rpartition("linear_attn.")[2] if "linear_attn." in name else ""
    size, rows = config.linear_value_head_dim, 16 * config.linear_num_key_heads
    if leaf.startswith(("in_proj_qkv.", "conv1d")) and not is_next:
        moved = regroup(numbers[rows:], config, size)
        numbers = torch.cat([numbers[:rows], moved])
    elif leaf.startswith("in_proj_z") and not is_next:
        numbers = regroup(numbers, config, size)
    elif leaf in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        numbers = numbers if is_next else regroup(numbers, config, 1)
    elif leaf.startswith("out_proj") and not is_next:
        numbers = regroup(numbers.T, config, size).T
    if leaf == "A_log":
        numbers = -numbers.exp()
    elif leaf == "conv1d.weight":
        numbers = numbers.squeeze(1)
    elif leaf == "dt_bias":
        name = name.replace("dt_bias", "dt_proj.bias")
    elif name.endswith("norm.weight") and leaf != "norm.weight":
        numbers = numbers + 1
    if leaf != "in_proj_qkvz.weight":
        yield from change_experts(config, name, numbers)
        return
    num_keys, hidden = config.linear_num_key_heads, numbers.shape[1]
    width = size * config.linear_num_value_heads // num_keys
    heads = numbers.reshape(num_keys, -1, hidden)
    q, k, v, z = (
        part.reshape(-1, hidden) for part in heads.split([8, 8, width, width], dim=1)
    )
    layer = name.split(".")[2]
    yield f"blk.{layer}.attn_qkv.weight", torch.cat([q, k, v])
    yield f"blk.{layer}.attn_gate.weight", z


def change_experts(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("experts.gate_up_proj"):
        gate, up = numbers.chunk(2, dim=1)
        yield f"blk.{layer}.ffn_gate_exps.weight", gate
        yield f"blk.{layer}.ffn_up_exps.weight", up
    elif name.endswith("experts.down_proj"):
        yield f"blk.{layer}.ffn_down_exps.weight", numbers
    elif name.endswith("shared_expert_gate.weight"):
        yield f"blk.{layer}.ffn_gate_inp_shexp.weight", numbers[0]
    else:
        yield name, numbers


def change_lfm2(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    if "conv.conv" in name:
        numbers = numbers.squeeze(1)
    if name.endswith(".expert_bias"):
        name += ".bias"
    yield from change_experts(config, name, numbers)


def change_granite(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        count = config.num_attention_heads
        count = count if "q_proj" in name else config.num_key_value_heads
        halves = numbers.reshape(count, 2, -1, numbers.shape[1])
        numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
    elif name.endswith("A_log"):
        numbers = -numbers.exp()[:, None]
    elif name.endswith(".D"):
        numbers = numbers[:, None]
    elif "conv1d.weight" in name:
        numbers = numbers.squeeze(1)
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        count = getattr(config, "mamba_n_groups", 0) or config.n_groups
        numbers = numbers.reshape(count, -1)
    elif name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    elif "router" in name:
        name = f"model.layers.{layer}.block_sparse_moe.router.layer.weight"
    elif "shared_mlp" in name:
        end = "_shexp" if config.num_local_experts else ""
        if "output" in name:
            yield f"blk.{layer}.ffn_down{end}.weight", numbers
            return
        gate, up = numbers.chunk(2)
        yield f"blk.{layer}.ffn_gate{end}.weight", gate
        yield f"blk.{layer}.ffn_up{end}.weight", up
        return
    yield from change_experts(config, name, numbers)


def change_gemma(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    leaf = name.rpartition(".")[2]
    names = {
        "layer_scalar": "layer_output_scale.weight",
        "scale": "ffn_gate_inp.scale",
        "per_expert_scale": "ffn_down_exps.scale",
        "gate_up_proj": "ffn_gate_up_exps.weight",
        "down_proj": "ffn_down_exps.weight",
    }
    yield (f"blk.{layer}.{names[leaf]}" if leaf in names else name), numbers


def mix_oss(name: str) -> Kind:
    """Choose types as the files of gpt-oss have them."""
    return Kind.MXFP4 if "_exps" in name else Kind.Q8_0


def change_oss(config: Any, name: str, numbers: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Write outputs of experts as rows, and gates apart from up projections."""
    layer = name.split(".")[2] if ".layers." in name else ""
    _, is_expert, leaf = name.partition(".experts.")
    if not is_expert:
        yield name + ".weight" * name.endswith(".sinks"), numbers
        return
    kind = "bias" if leaf.endswith("_bias") else "weight"
    outputs = numbers if kind == "bias" else numbers.transpose(1, 2)
    if leaf.startswith("down_proj"):
        yield f"blk.{layer}.ffn_down_exps.{kind}", outputs
    else:
        yield f"blk.{layer}.ffn_gate_exps.{kind}", outputs[:, ::2]
        yield f"blk.{layer}.ffn_up_exps.{kind}", outputs[:, 1::2]


def add_oss(writer: GGUFWriter, config: Any) -> None:
    rotary = config.rope_parameters
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rotary["factor"])
    length = rotary["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(length)


def add_gemma(writer: GGUFWriter, config: Any, kinds: list[str]) -> None:
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    size = config.hidden_size_per_layer_input
    writer.add_embedding_length_per_layer_input(size)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == KINDS[0] for kind in kinds])
    writer.add_key_length(GEMMA["global_head_dim"])
    writer.add_key_length_swa(GEMMA["head_dim"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_rope_freq_base(1_000_000.0)
    if config.use_double_wide_mlp:
        width, num_shared = config.intermediate_size, config.num_kv_shared_layers
        own = [width] * (len(kinds) - num_shared)
        writer.add_feed_forward_length(own + [2 * width] * num_shared)
    if config.enable_moe_block:
        writer.add_head_count_kv([2 if kind == KINDS[0] else 1 for kind in kinds])
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_tensor("rope_freqs.weight", np.float32([1.0] * 4 + [1e30] * 12))
    if config.num_kv_shared_layers:
        # Checkpoints have them, and nothing reads them.
        unused = np.zeros((32, 32), np.float32)
        writer.add_tensor("blk.3.attn_k.weight", unused)


def change_nemotron(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("experts.up_proj"):
        yield f"blk.{layer}.ffn_up_exps.weight", numbers
    elif name.endswith("e_score_correction_bias"):
        yield f"blk.{layer}.exp_probs_b.bias", numbers
    else:
        for changed, each in change_granite(config, name, numbers):
            yield changed.replace("model.", "backbone.", 1), each


def change_falcon(
    config: Any, name: str, numbers: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Multiply the weights by the factors of the configuration."""
    entering = config.attention_in_multiplier
    factors = {
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "q_proj": entering,
        "k_proj": entering * config.key_multiplier,
        "v_proj": entering,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "in_proj": config.ssm_in_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    numbers = numbers * factors.get(name.split(".")[-2], 1.0)
    if "in_proj" in name:
        inner, groups = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        sizes = [inner, inner, groups, groups, config.mamba_n_heads]
        scales = torch.tensor(config.ssm_multipliers)
        numbers = numbers * scales.repeat_interleave(torch.tensor(sizes))[:, None]
    if "_proj" in name:
        yield name, numbers
    else:
        yield from change_granite(config, name, numbers)


def write_gguf(
    path: Path,
    family: str,
    model: PreTrainedModel,
    add: Callable[[GGUFWriter], None] = lambda writer: None,
    kinds: Callable[[str], Kind] = lambda name: Kind.F32,
) -> Path:
    """Write a model.

    Args:
      add: adds entries and tensors.
      kinds: returns the type of a matrix's blocks; vectors and some others are always F32.
    """
    config: Any = model.config
    architecture = family.partition(" ")[0]
    writer = GGUFWriter(path, architecture)
    add_sizes(writer, config)
    # Later entries replace earlier ones.
    logging.getLogger("gguf").setLevel("ERROR")
    add(writer)
    codes = {name: code for code, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(codes[architecture], config.num_hidden_layers)
    change: Change = change_granite
    if architecture.startswith("qwen"):
        change = change_delta
    elif architecture.startswith("lfm2"):
        change = change_lfm2
    if architecture == "gemma4":
        change = change_gemma
    elif architecture == "falcon-h1":
        change = change_falcon
    elif architecture == "gpt-oss":
        change = change_oss
    elif architecture.startswith("nemotron"):
        change = change_nemotron
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for changed, each in change(config, name, parameter):
            short: str | None = changed
            if not changed.startswith("blk."):
                short = table.get_name(changed, try_suffixes=(".weight", ".bias"))
            assert short is not None, changed
            numbers = each.contiguous().numpy()
            kind = kinds(short) if is_quantised(short, numbers) else Kind.F32
            if numbers.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
                kind = Kind.F16
            writer.add_tensor(short, quantise(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_quantised(name: str, numbers: NDArray[np.float32]) -> bool:
    """Return whether llama.cpp quantises a tensor.

    Source: llama.cpp, tensor_allows_quantization in src/llama-quant.cpp.
    """
    kept = "_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight"
    return (
        numbers.ndim > 1
        and name.endswith(".weight")
        and not any(each in name for each in kept)
    )


def quantise(numbers: NDArray[np.float32], kind: Kind) -> NDArray[Any]:
    if kind.name.endswith("_K") or kind.name.startswith("IQ"):
        return draw_blocks(numbers.shape, kind, len(numbers), scale=0.0005)
    return gguf.quantize(numbers, kind)


def add_sizes(writer: GGUFWriter, config: Any) -> None:
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if getattr(config, "intermediate_size", None):
        writer.add_feed_forward_length(config.intermediate_size)
    if "rope_theta" in (getattr(config, "rope_parameters", None) or {}):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    kv_heads: Any = SIZES["num_key_value_heads"]
    if writer.arch.startswith(("lfm2", "granitehybrid", "nemotron")):
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in kinds]
    writer.add_head_count_kv(kv_heads)
    names = ("norm_eps", "rms_norm_eps", "layer_norm_epsilon")
    eps = next(getattr(config, name) for name in names if hasattr(config, name))
    writer.add_layer_norm_rms_eps(eps)
    if writer.arch.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if writer.arch == "lfm2moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if getattr(config, "num_experts", 0) and writer.arch != "gemma4":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        width = getattr(config, "moe_intermediate_size", 0) or config.intermediate_size
        writer.add_expert_feed_forward_length(width)
    if writer.arch == "gpt-oss":
        add_oss(writer, config)
    if writer.arch.startswith("granite"):
        add_granite(writer, config)
    if writer.arch == "falcon-h1":
        writer.add_key_length(config.head_dim)
        add_mamba(writer, config)
    if writer.arch == "gemma4":
        add_gemma(writer, config, kinds)
    if writer.arch.startswith("nemotron"):
        add_nemotron(writer, config, kinds)
    if writer.arch.startswith("qwen"):
        add_delta(writer, config)
    tokens = [*"abcdefghij", "Ġ", "ab", *(f"t{index}" for index in range(52))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)


def add_granite(writer: GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    if writer.arch == "granite":
        return
    add_mamba(writer, config)
    writer.add_rope_scaling_finetuned(False)
    if config.num_local_experts:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)


def add_mamba(writer: GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)


def add_nemotron(writer: GGUFWriter, config: Any, kinds: list[str]) -> None:
    writer.add_key_length(config.head_dim)
    widths = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
    writer.add_feed_forward_length([widths.get(kind, 0) for kind in kinds])
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    if writer.arch == "nemotron_h_moe":
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        size = config.moe_shared_expert_intermediate_size
        writer.add_expert_shared_feed_forward_length(size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_moe_latent_size(config.moe_latent_size)


def add_delta(writer: GGUFWriter, config: Any) -> None:
    rotary = config.rope_parameters
    writer.add_key_length(config.head_dim)
    writer.add_full_attention_interval(4)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    num_heads = config.linear_num_value_heads
    writer.add_ssm_inner_size(config.linear_value_head_dim * num_heads)
    size = int(config.head_dim * rotary["partial_rotary_factor"])
    writer.add_rope_dimension_count(size)
    if "mrope_section" in rotary:
        writer.add_rope_dimension_sections([*rotary["mrope_section"], 0])
    if getattr(config, "shared_expert_intermediate_size", 0):
        size = config.shared_expert_intermediate_size
        writer.add_expert_shared_feed_forward_length(size)
