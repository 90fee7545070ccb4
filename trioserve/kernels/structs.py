"""The structures that the kernels read: those of native/decoder.h, field by field."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_void_p


class LayerSpec(Structure):
    """One layer; a null pointer is a part that the model does not have."""

    _fields_ = [
        *((name, c_void_p) for name in ("input_norm", "qkv", "qkv_bias")),
        *((name, c_void_p) for name in ("query_norm", "key_norm", "cos", "sin")),
        *((name, c_void_p) for name in ("sinks", "output", "output_bias")),
        *((name, c_void_p) for name in ("attention_post_norm", "mlp_norm")),
        *((name, c_void_p) for name in ("gate", "up", "down", "mlp_post_norm")),
        ("cache", c_void_p),
        ("scaling", c_float),
        ("softcap", c_float),
        ("window", c_int32),
        ("unused", c_int32),
    ]


class DecoderSpec(Structure):
    """A model."""

    _fields_ = [
        *((name, c_void_p) for name in ("layers", "final_norm", "head")),
        *((name, c_int32) for name in ("num_layers", "hidden_size")),
        *((name, c_int32) for name in ("intermediate_size", "vocab_size")),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "key_dim")),
        *((name, c_int32) for name in ("value_dim", "rotary_dim", "block_size")),
        ("activation", c_int32),
        ("epsilon", c_float),
        ("logit_softcap", c_float),
        ("unused", c_int32),
    ]


class StepSpec(Structure):
    """One step."""

    _fields_ = [
        *((name, c_void_p) for name in ("hidden", "blocks", "rows", "wanted")),
        ("logits", c_void_p),
        *((name, c_int32) for name in ("num_tokens", "num_rows", "num_wanted")),
        ("max_blocks", c_int32),
    ]
