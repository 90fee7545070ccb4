"""The structures that the kernels read, field by field.

They stand in native/matrix.h, native/stored.h, native/experts.h, native/states.h,
native/latents.h,
native/adapters.h, native/decoder.h, native/encoder.h, native/logits.h and native/exchange.h.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, Structure, c_double, c_float, c_int32, c_int64, c_void_p

# Adds the numbers of other processes to ours: (address of float32 numbers, their count).
SUM = CFUNCTYPE(None, c_void_p, c_int64)


class MatrixSpec(Structure):
    """A packed matrix."""

    _fields_ = [
        ("weights", c_void_p),
        *((name, c_int32) for name in ("format", "num_outputs", "num_inputs")),
        ("group_size", c_int32),
        ("columns", c_void_p),
    ]


class SourceSpec(Structure):
    """Rows of weights that are packed."""

    _fields_ = [
        *((name, c_void_p) for name in ("rows", "order")),
        ("row_bytes", c_int64),
        *((name, c_int32) for name in ("kind", "num_outputs")),
        *((name, c_void_p) for name in ("scales", "zeros", "columns")),
        *((name, c_int32) for name in ("num_groups", "group_size")),
    ]


class ExpertSpec(Structure):
    """One expert of a mixture."""

    _fields_ = [
        *((name, MatrixSpec) for name in ("gate", "up", "down")),
        *((name, c_void_p) for name in ("gate_bias", "up_bias", "down_bias")),
    ]


class MixtureSpec(Structure):
    """The mixture of experts of one layer."""

    _fields_ = [
        *((name, MatrixSpec) for name in ("router", "shared_gate")),
        *((name, c_void_p) for name in ("experts", "router_bias", "choice_bias")),
        *((name, c_void_p) for name in ("expert_scales", "router_norm", "input_norm")),
        *((name, c_void_p) for name in ("output_norm", "network_norm")),
        *((name, c_int32) for name in ("num_experts", "num_chosen")),
        *((name, c_int32) for name in ("has_shared", "renormalizes", "has_sigmoid")),
        *((name, c_int32) for name in ("num_groups", "num_chosen_groups")),
        *((name, c_int32) for name in ("num_ranked", "first_product")),
        *((name, c_float) for name in ("scale", "slope", "limit")),
    ]


class StateSpec(Structure):
    """The state that a sublayer keeps in place of keys and values."""

    _fields_ = [
        *((name, c_void_p) for name in ("taps", "tap_bias", "decay", "decay_bias")),
        *((name, c_void_p) for name in ("skip", "norm")),
        *((name, MatrixSpec) for name in ("widen_decays", "widen_gates")),
        ("places", c_void_p),
        *((name, c_int32) for name in ("kind", "num_channels", "num_taps")),
        *((name, c_int32) for name in ("num_key_heads", "num_value_heads")),
        *((name, c_int32) for name in ("key_dim", "value_dim", "num_norm_groups")),
        ("has_gate_behind", c_int32),
        *((name, c_float) for name in ("min_step", "max_step")),
    ]


class LatentSpec(Structure):
    """The products of attention whose heads share one latent a token."""

    _fields_ = [
        ("queries", MatrixSpec),
        *((name, c_void_p) for name in ("absorb", "expand")),
        *((name, c_void_p) for name in ("query_norm", "latent_norm")),
        *((name, c_int32) for name in ("num_query_inputs", "own_dim", "shared_dim")),
        ("epsilon", c_float),
    ]


class AttentionSpec(Structure):
    """Attention of a sublayer; a null pointer is a part that it does not have."""

    _fields_ = [
        *((name, c_void_p) for name in ("query_norm", "key_norm", "value_norm")),
        *((name, c_void_p) for name in ("cos", "sin", "sinks", "latent")),
        *((name, c_float) for name in ("scaling", "softcap")),
        *((name, c_int32) for name in ("window", "num_heads", "num_kv_heads")),
        *((name, c_int32) for name in ("key_dim", "value_dim", "rotary_dim")),
        *((name, c_int32) for name in ("keys_are_values", "has_gate")),
        *((name, c_int32) for name in ("shares_cache", "is_windowed", "joins_images")),
    ]


class SublayerSpec(Structure):
    """One sublayer; a null pointer is a part that it does not have."""

    _fields_ = [
        ("inputs", c_void_p),
        *((name, MatrixSpec) for name in ("gate", "output")),
        *((name, c_void_p) for name in ("norm", "inputs_scale", "inputs_bias")),
        *((name, c_void_p) for name in ("output_bias", "post_norm")),
        *((name, c_void_p) for name in ("attention", "state", "mixture", "cache")),
        *((name, c_float) for name in ("gate_scale", "scale", "output_scale")),
        *((name, c_int32) for name in ("kind", "num_inputs", "layer")),
    ]


class DecoderSpec(Structure):
    """A model."""

    _fields_ = [
        ("sublayers", c_void_p),
        ("head", MatrixSpec),
        ("final_norm", c_void_p),
        *((name, c_int32) for name in ("num_sublayers", "num_layers")),
        *((name, c_int32) for name in ("hidden_size", "vocab_size")),
        *((name, c_int32) for name in ("block_size", "activation")),
        *((name, c_float) for name in ("epsilon", "logit_softcap")),
        ("sum", c_void_p),
    ]


class ExpandSpec(Structure):
    """What an adapter adds to blocks of outputs."""

    _fields_ = [
        *((name, c_void_p) for name in ("weights", "scales")),
        *((name, c_int32) for name in ("first_block", "num_blocks")),
        *((name, c_int32) for name in ("first_rank", "num_ranks")),
    ]


class AdditionSpec(Structure):
    """What an adapter adds to one product."""

    _fields_ = [
        *((name, c_void_p) for name in ("shrink", "expands")),
        *((name, c_int32) for name in ("num_expands", "rank", "num_inputs")),
    ]


class AdapterRun(Structure):
    """Tokens that follow each other, and have the same adapter."""

    _fields_ = [
        ("additions", c_void_p),
        *((name, c_int32) for name in ("first_token", "num_tokens")),
    ]


class StepSpec(Structure):
    """One step."""

    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "blocks", "window_blocks")),
        *((name, c_void_p) for name in ("rows", "wanted")),
        *((name, c_void_p) for name in ("logits", "lookups", "cos", "sin")),
        *((name, c_void_p) for name in ("deepstack", "key_ends", "adapters")),
        *((name, c_int32) for name in ("num_tokens", "num_rows", "num_wanted")),
        *((name, c_int32) for name in ("max_blocks", "num_deepstack")),
        *((name, c_int32) for name in ("num_adapters", "adapter_format")),
    ]


class EncoderLayerSpec(Structure):
    """One layer of an encoder; it has every part."""

    _fields_ = [
        *((name, MatrixSpec) for name in ("qkv", "output", "up", "down")),
        *((name, c_void_p) for name in ("qkv_bias", "output_bias")),
        *((name, c_void_p) for name in ("attention_norm", "attention_norm_bias")),
        *((name, c_void_p) for name in ("up_bias", "down_bias")),
        *((name, c_void_p) for name in ("output_norm", "output_norm_bias")),
    ]


class EncoderSpec(Structure):
    """An encoder."""

    _fields_ = [
        ("layers", c_void_p),
        *((name, c_int32) for name in ("num_layers", "hidden_size")),
        *((name, c_int32) for name in ("intermediate_size", "num_heads", "head_dim")),
        ("activation", c_int32),
        *((name, c_float) for name in ("epsilon", "scaling")),
    ]


class TextsSpec(Structure):
    """The texts of one step of an encoder."""

    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "texts")),
        *((name, c_int32) for name in ("num_tokens", "num_texts")),
    ]


class LogitsSpec(Structure):
    """Rows of logits."""

    _fields_ = [
        ("numbers", c_void_p),
        ("stride", c_int64),
        *((name, c_int32) for name in ("num_rows", "vocab_size")),
    ]


class ExchangeSpec(Structure):
    """The memory in which processes exchange numbers, as one of them sees it."""

    _fields_ = [
        ("memory", c_void_p),
        *((name, c_int64) for name in ("place_bytes", "num_done")),
        *((name, c_int32) for name in ("index", "count")),
        ("timeout_seconds", c_double),
    ]


# As native/api.cpp lists them.
SPECS = (
    *(MatrixSpec, SourceSpec, ExpertSpec, MixtureSpec, StateSpec, LatentSpec),
    *(AttentionSpec, SublayerSpec, DecoderSpec, ExpandSpec, AdditionSpec, AdapterRun),
    *(StepSpec, EncoderLayerSpec, EncoderSpec, TextsSpec, LogitsSpec, ExchangeSpec),
)
