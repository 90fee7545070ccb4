"""The config.json of a plain Llama, read without transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

# Mistral without a window is the same.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}

# The sizes that must be there.
_NUMBERS = (
    *("hidden_size", "intermediate_size", "max_position_embeddings"),
    *("num_attention_heads", "num_hidden_layers", "vocab_size"),
)

# Fields with the only values that are plain. They may be missing.
_PLAIN: dict[str, object] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    # Of training, and of a layout of weights that has been undone.
    "pretraining_tp": 1,
    # transformers never turned pairs of neighbours in these models.
    "rope_interleaved": False,
}

# Fields that change no logits.
_INERT = frozenset(
    {
        *("_model_name_or_path", "_name_or_path", "attention_dropout", "bos_token_id"),
        *("initializer_range", "is_llama_config", "pad_token_id", "unk_token_id"),
        *("transformers.js_config", "transformers_version", "use_cache"),
    }
)

# The names of older releases of transformers are among them.
_OTHERS = frozenset(
    {
        *("architectures", "dtype", "eos_token_id", "head_dim", "model_type"),
        *("num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling"),
        *("rope_theta", "sliding_window", "tie_word_embeddings", "torch_dtype"),
    }
)

# Files by which a folder says more about its weights than config.json.
_OTHER_FILES = (
    *("adapter_config.json", "hf_quant_config.json", "quant_config.json"),
    "quantize_config.json",
)

# Fields of MistralConfig whose defaults are others than here.
_MISTRAL_NEEDS = {"num_key_value_heads", "sliding_window"}

# Defaults of LlamaConfig and MistralConfig; test_plain.py compares them.
_DEFAULT_EOS, _DEFAULT_THETA = 2, 10000.0

_SCALING = ("factor", "high_freq_factor", "low_freq_factor")
_STRETCHED = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The fields of config.json by which Llama 3.1 slows its slow rotary angles down."""

    factor: float
    high_freq_factor: float
    low_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """The facts of a Llama with equal layers, by the names in config.json.

    Args:
      architecture: transformers' class name.
      dtype: torch's name of the type of its numbers; None if it is not known.
    """

    architecture: str
    head_dim: int
    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    vocab_size: int
    dtype: str | None
    eos_token_id: int | list[int] | None
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tie_word_embeddings: bool


class _NotPlain(Exception):
    """Raised when a field does not belong to a plain Llama."""


def describes_plain_llama(folder: Path) -> bool:
    """Return whether the config.json of a folder describes a plain Llama that generates."""
    return read_plain_config(folder) is not None


def read_plain_config(folder: Path) -> PlainConfig | None:
    """Read the config.json of a folder.

    Returns:
      None if it describes anything else than a plain Llama, or cannot be read.
    """
    if any((folder / name).exists() for name in _OTHER_FILES):
        return None
    try:
        return _read(json.loads((folder / "config.json").read_bytes()))
    # Another form. Whoever reads the file next names the mistake, if it is one.
    except (
        _NotPlain,
        OSError,
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):
        return None


def _read(described: dict[str, Any]) -> PlainConfig:
    model_type = described["model_type"]
    sizes = {name: _read_size(described[name]) for name in _NUMBERS}
    size, num_heads = sizes["hidden_size"], sizes["num_attention_heads"]
    num_kv_heads = _read_size(described.get("num_key_value_heads") or num_heads)
    head_dim = _read_size(described.get("head_dim") or size // num_heads)
    is_tied = described.get("tie_word_embeddings", False)
    theta, scaling = _read_rope(described)
    _check(
        described["architectures"] == [_ARCHITECTURES[model_type]],
        # A field that is not known here could change the model.
        described.keys() <= {*_NUMBERS, *_PLAIN, *_INERT, *_OTHERS},
        all(described.get(key, plain) == plain for key, plain in _PLAIN.items()),
        model_type == "llama" or described.keys() >= _MISTRAL_NEEDS,
        described.get("sliding_window") is None,
        # transformers refuses others.
        size % num_heads == 0,
        num_heads % num_kv_heads == 0,
        head_dim % 2 == 0,
        type(is_tied) is bool,
    )
    return PlainConfig(
        **sizes,
        architecture=_ARCHITECTURES[model_type],
        head_dim=head_dim,
        num_key_value_heads=num_kv_heads,
        dtype=_read_dtype(described),
        eos_token_id=_read_eos(described),
        rms_norm_eps=_read_number(described["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=is_tied,
    )


def _read_rope(described: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Return the base of the rotary angles, and their scaling."""
    rope = described.get("rope_parameters")
    if rope is None:
        rope = {"rope_theta": described.get("rope_theta", _DEFAULT_THETA)}
        rope |= described.get("rope_scaling") or {"rope_type": "default"}
    else:
        # The two forms could contradict each other.
        _check(not described.keys() & {"rope_theta", "rope_scaling"})
    theta = _read_number(rope["rope_theta"])
    if rope["rope_type"] == "default":
        _check(rope.keys() == {"rope_theta", "rope_type"})
        return theta, None
    _check(rope.keys() == {"rope_theta", "rope_type", *_SCALING, _STRETCHED})
    _check(rope["rope_type"] == "llama3")
    scaling = Llama3Scaling(
        **{name: _read_number(rope[name]) for name in _SCALING},
        original_max_position_embeddings=_read_size(rope[_STRETCHED]),
    )
    _check(scaling.high_freq_factor > scaling.low_freq_factor)
    return theta, scaling


def _read_dtype(described: Mapping[str, Any]) -> str | None:
    _check(not {"dtype", "torch_dtype"} <= described.keys())
    dtype: object = described.get("dtype", described.get("torch_dtype"))
    return None if dtype is None else str(dtype)


def _read_eos(described: Mapping[str, Any]) -> int | list[int] | None:
    eos: int | list[int] | None = described.get("eos_token_id", _DEFAULT_EOS)
    ids = eos if isinstance(eos, list) else [eos]
    _check(eos is None or all(type(each) is int for each in ids))
    return eos


def _read_size(value: Any) -> int:
    _check(type(value) is int, value > 0)
    return int(value)


def _read_number(value: Any) -> float:
    _check(type(value) in (int, float), value > 0)
    return float(value)


def _check(*are_plain: bool) -> None:
    if not all(are_plain):
        raise _NotPlain
