"""The config.json of a plain Llama, read without transformers."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

ARCHITECTURE = "LlamaForCausalLM"

# The fields that must be there.
_NUMBERS = (
    *("head_dim", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size"),
)

# Fields with the only values that are plain.
_PLAIN: dict[str, object] = {
    "architectures": [ARCHITECTURE],
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "model_type": "llama",
    # Of training, and of a layout of weights that has been undone.
    "pretraining_tp": 1,
}

# Fields that change no logits.
_INERT = frozenset(
    {
        *("_model_name_or_path", "_name_or_path", "attention_dropout", "bos_token_id"),
        *("initializer_range", "pad_token_id", "transformers_version", "unk_token_id"),
        "use_cache",
    }
)

_OTHERS = frozenset(
    {"dtype", "eos_token_id", "rms_norm_eps", "rope_parameters", "tie_word_embeddings"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """The facts of a Llama whose layers are alike; the names are those of config.json."""

    head_dim: int
    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    num_key_value_heads: int
    vocab_size: int
    dtype: str
    eos_token_id: Any
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool


def read_plain_config(folder: Path) -> PlainConfig | None:
    """Read the config.json of a folder, as transformers saves it.

    Returns:
      None if it describes anything else than a plain Llama, or cannot be read.
    """
    try:
        described = json.loads((folder / "config.json").read_bytes())
        rope = described["rope_parameters"]
        is_plain = (
            all(described.get(key, plain) == plain for key, plain in _PLAIN.items())
            # A field that is not known here could change the model.
            and described.keys() <= {*_NUMBERS, *_PLAIN, *_INERT, *_OTHERS}
            and {"architectures", "model_type"} <= described.keys()
            and rope.keys() == {"rope_theta", "rope_type"}
            and rope["rope_type"] == "default"
            and all(type(described[key]) is int for key in _NUMBERS)
            and described["head_dim"] % 2 == 0
            and described["num_attention_heads"] % described["num_key_value_heads"] == 0
        )
        if not is_plain:
            return None
        return PlainConfig(
            **{key: described[key] for key in _NUMBERS},
            dtype=str(described["dtype"]),
            eos_token_id=described.get("eos_token_id"),
            rms_norm_eps=float(described["rms_norm_eps"]),
            rope_theta=float(rope["rope_theta"]),
            tie_word_embeddings=bool(described["tie_word_embeddings"]),
        )
    # Another form. Whoever reads the file next names the mistake, if it is one.
    except (
        OSError,
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):
        return None
