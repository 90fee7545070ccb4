"""The formulas of layers that keep a state, for the native kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....kernels.structs import MatrixSpec, StateSpec
from ..choice import NotRecognised
from ..description import DeltaParts, ShortConvParts, StateParts
from .gguf_matrix import GgufMatrix
from .packer import Rows

# StateKind of native/states.h.
_DELTA, _MAMBA2, _SHORT_CONV, _KIMI = range(4)

Point = Callable[[Tensor | None], int | None]
Pack = Callable[[Sequence[nn.Linear]], MatrixSpec]


def find_places(mixer: StateParts, output: Rows) -> Tensor | None:
    """Return the place of each head of values among the inputs of a mixer's output.

    Args:
      output: the rows of that product.

    Returns:
      (num_value_heads,) int32; None if the heads are in order

    Raises:
      NotRecognised: the columns of the product are no whole heads.
    """
    matrix = output[0]
    if not isinstance(matrix, GgufMatrix) or matrix.columns is None:
        return None
    if isinstance(mixer, DeltaParts):
        heads = matrix.columns.reshape(-1, mixer.value_dim)
        if np.all(np.diff(heads) == 1) and not np.any(heads[:, 0] % mixer.value_dim):
            return torch.from_numpy((heads[:, 0] // mixer.value_dim).astype(np.int32))
    raise NotRecognised("the columns of a product lie in another order")


def make_state(
    mixer: StateParts,
    places: Tensor | None,
    point: Point,
    pack: Pack,
) -> StateSpec:
    """Describe a layer's state.

    Args:
      places: as find_places returns them.
      point: returns a pointer to the numbers of a tensor.
      pack: packs products.
    """
    taps = mixer.convolution.taps
    return StateSpec(
        taps=point(taps.T),
        tap_bias=point(mixer.convolution.bias),
        num_channels=len(taps),
        num_taps=taps.shape[1],
        places=None if places is None else places.data_ptr(),
        **_list_fields(mixer, point, pack),
    )


def _list_fields(mixer: StateParts, point: Point, pack: Pack) -> dict[str, Any]:
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
        fields |= {
            "kind": _DELTA,
            "num_key_heads": mixer.num_key_heads,
            "num_value_heads": mixer.num_value_heads,
        }
        if mixer.widen_decays is None or mixer.widen_gates is None:
            return fields
        return {
            **fields,
            "kind": _KIMI,
            "widen_decays": pack([mixer.widen_decays]),
            "widen_gates": pack([mixer.widen_gates]),
        }
    least, largest = mixer.step_limits
    return {
        **fields,
        "kind": _MAMBA2,
        "num_key_heads": mixer.num_groups,
        "num_value_heads": mixer.num_heads,
        "skip": point(mixer.skip),
        "num_norm_groups": mixer.num_norm_groups,
        "has_gate_behind": mixer.has_gate_behind,
        "min_step": least,
        "max_step": largest,
    }
