"""The norms of a decoder's layers, found by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..choice import NotRecognised
from .formulas import find_norm
from .products import get_part

_FIRST = "input_layernorm", "operator_norm", "norm"

# In Gemma's layers, which have one more before the network, the first name means the norm
# behind what mixes tokens.
_SECOND = "post_attention_layernorm", "pre_ff_layernorm", "ffn_norm"
_BEFORE_NETWORK = "pre_feedforward_layernorm"

_BEHIND_MIXER = "post_self_attn_layernorm", "post_operator_norm", "post_norm1"
_BEHIND_NETWORK = (
    *("post_feedforward_layernorm", "post_mlp_layernorm"),
    *("post_ffn_norm", "post_norm2"),
)

# beside.py and lookups.py find these.
_OTHERS = (
    *("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"),
    *("pre_feedforward_layernorm_2", "post_per_layer_input_norm"),
)

_KNOWN = {
    *(*_FIRST, *_SECOND, _BEFORE_NETWORK),
    *(*_BEHIND_MIXER, *_BEHIND_NETWORK, *_OTHERS),
}


class LayerNorms(NamedTuple):
    """The norms behind the first one, (hidden_size,) float32; None if there is none."""

    before_network: Tensor
    behind_mixer: Tensor | None
    behind_network: Tensor | None


def find_first_norm(layer: nn.Module) -> Tensor:
    """Return the weight of the norm before a layer, (hidden_size,) float32.

    Raises:
      NotRecognised
    """
    return find_norm(get_part(layer, *_FIRST))


def find_norms(layer: nn.Module) -> LayerNorms:
    """Find the other norms of a layer with a mixer of tokens and a network.

    Raises:
      NotRecognised: there are some at other places, too.
    """
    others = {
        name
        for name, child in layer.named_children()
        if "norm" in name and name not in _KNOWN and type(child) is not nn.Identity
    }
    if others:
        raise NotRecognised(f"{type(layer).__name__} has {', '.join(sorted(others))}")
    second = find_norm(get_part(layer, *_SECOND))
    mixer, network = (
        _find_any(layer, names) for names in (_BEHIND_MIXER, _BEHIND_NETWORK)
    )
    before = _find_any(layer, [_BEFORE_NETWORK])
    if before is not None:
        return LayerNorms(before, second, network)
    return LayerNorms(second, mixer, network)


def _find_any(layer: nn.Module, names: Sequence[str]) -> Tensor | None:
    """Return the weight of the norm that has one of several names; None without it."""
    norms: list[Any] = [getattr(layer, name, nn.Identity()) for name in names]
    found = [norm for norm in norms if type(norm) is not nn.Identity]
    return find_norm(found[0]) if found else None
