"""The families by llama.cpp's names of their architectures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from . import falcon_h1, gemma4, gpt_oss, granite, lfm2, nemotron_h, qwen_next
from ...types.gguf_rules import Rules
from .rules import Metadata

# Returns the fields of a configuration, from the header and the shapes of the tensors.
MakeConfig: TypeAlias = Callable[[Metadata, dict[str, tuple[int, ...]]], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How llama.cpp writes the models of one architecture.

    Args:
      make_config: returns the fields of the configuration, `model_type` among them;
        raises Unreadable.
      make_rules: returns the rules of the tensors, from the configuration.
    """

    make_config: MakeConfig
    make_rules: Callable[[Any], Rules]


_FAMILIES: Final = {
    "falcon-h1": Family(make_config=falcon_h1.describe, make_rules=falcon_h1.read),
    "gemma4": Family(make_config=gemma4.describe, make_rules=gemma4.read),
    "gpt-oss": Family(make_config=gpt_oss.describe, make_rules=gpt_oss.read),
    "granite": Family(
        make_config=granite.describe_dense, make_rules=granite.read_dense
    ),
    "granitehybrid": Family(
        make_config=granite.describe_hybrid, make_rules=granite.read_hybrid
    ),
    "lfm2": Family(make_config=lfm2.describe, make_rules=lfm2.read),
    "lfm2moe": Family(make_config=lfm2.describe_moe, make_rules=lfm2.read_moe),
    "nemotron_h": Family(make_config=nemotron_h.describe, make_rules=nemotron_h.read),
    "nemotron_h_moe": Family(
        make_config=nemotron_h.describe_moe, make_rules=nemotron_h.read_moe
    ),
    "qwen35": Family(make_config=qwen_next.describe_35, make_rules=qwen_next.read_35),
    "qwen35moe": Family(
        make_config=qwen_next.describe_35_moe, make_rules=qwen_next.read_35_moe
    ),
    "qwen3next": Family(
        make_config=qwen_next.describe_next, make_rules=qwen_next.read_next
    ),
}


def find_family(architecture: str) -> Family | None:
    """Return the family of an architecture; None if transformers' reader is for it."""
    return _FAMILIES.get(architecture)
