"""The formulas of layers that keep a state, for the native kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ....kernels.structs import StateSpec
from ..description import DeltaParts, ShortConvParts, StateParts

# StateKind of native/states.h.
_DELTA, _MAMBA2, _SHORT_CONV = range(3)


def make_state(
    mixer: StateParts, point: Callable[[Tensor | None], int | None]
) -> StateSpec:
    """Describe a layer's state.

    Args:
      point: returns a pointer to the numbers of a tensor.
    """
    taps = mixer.convolution.taps
    return StateSpec(
        taps=point(taps.T),
        tap_bias=point(mixer.convolution.bias),
        num_channels=len(taps),
        num_taps=taps.shape[1],
        **_list_fields(mixer, point),
    )


def _list_fields(
    mixer: StateParts, point: Callable[[Tensor | None], int | None]
) -> dict[str, Any]:
    if isinstance(mixer, ShortConvParts):
        return {"kind": _SHORT_CONV}
    fields = {
        "decay": point(mixer.decay),
        "decay_bias": point(mixer.decay_bias),
        "norm": point(mixer.norm),
        "key_dim": mixer.key_dim,
        "value_dim": mixer.value_dim,
    }
    if isinstance(mixer, DeltaParts):
        return {
            **fields,
            "kind": _DELTA,
            "num_key_heads": mixer.num_key_heads,
            "num_value_heads": mixer.num_value_heads,
        }
    least, largest = mixer.step_limits
    return {
        **fields,
        "kind": _MAMBA2,
        "num_key_heads": mixer.num_groups,
        "num_value_heads": mixer.num_heads,
        "skip": point(mixer.skip),
        "num_norm_groups": mixer.num_norm_groups,
        "min_step": least,
        "max_step": largest,
    }
