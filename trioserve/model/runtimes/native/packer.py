"""Packs the weights of products for the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ....kernels.library import Library
from ....kernels.restore import describe_stored
from ....kernels.stored import StoredWeights
from ....kernels.structs import MatrixSpec, SourceSpec
from .gguf_matrix import GgufMatrix

# One product's weights: (num_outputs, num_inputs) numbers, rows of a GGUF file, or the weights of
# another quantised checkpoint.
Weights = Tensor | GgufMatrix | StoredWeights

# Matrices whose outputs follow each other.
Rows = Sequence[Weights]

# FormatCode of native/matrix.h.
_FLOAT32, _BFLOAT16, _INT8, _INT4, _INT8_INPUTS16, _INT4_INPUTS16 = range(6)
_MXFP4_INPUTS16, _IQ4_INPUTS16 = 6, 7
NUMBERS = {torch.float32: _FLOAT32, torch.bfloat16: _BFLOAT16}
# The formats of a KV cache.
CACHES = {**NUMBERS, torch.int8: _INT8}

# SourceKind of native/gguf.h, by ggml's names.
_KINDS = {
    name: code
    for code, name in enumerate(
        "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K MXFP4 Q2_K Q3_K "
        "IQ4_NL IQ4_XS".split()
    )
}
_TENSOR_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

# Kinds with codes of 4 bits or fewer, and kinds with groups of 16 weights in place of 32. Names
# in small letters are formats of stored weights.
_FOUR_BITS = {"Q4_0", "Q4_1", "Q4_K", "Q2_K", "Q3_K", "int4"}
_SMALL_GROUPS = {"Q6_K", "Q2_K", "Q3_K"}

# Kinds whose codes of 4 bits are places in a table -> the format with that table. Inputs have
# 16 bits, even beside others of eight: sums of bytes would be too large on CPUs without VNNI.
_TABLES = {
    **dict.fromkeys(("MXFP4", "mxfp4"), _MXFP4_INPUTS16),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), _IQ4_INPUTS16),
}

# Weights that share a scale, if numbers are quantised, or a checkpoint has as large groups. Perplexity
# of SmolLM2-135M above float32's: 4.0 % with one scale for all inputs of an output, 0.9 % with
# groups of 128, 0.45 % with 64 and 0.55 % with 32. A few inputs are much larger than all others.
# Products with larger groups would have no tiles (kMaxTileGroup of native/tile_groups.h). Inputs of
# eight bits beside weights of four have groups of 32 at most (native/quantised.h).
_LARGE_GROUP = 64

# The kinds of weights that the kernels can pack.
PACKABLE_KINDS = frozenset(_KINDS)


class Packer:
    """Packs weights, and keeps the tensors to which the kernels have pointers.

    Args:
      pool: of the library; its threads pack.
      dtype: float32 or bfloat16, of weights that stay numbers.
      int8: quantise numbers to int8, and the inputs of quantised products.
    """

    def __init__(
        self, library: Library, pool: int, dtype: torch.dtype, *, int8: bool
    ) -> None:
        self._library = library
        self._pool = pool
        self._dtype = dtype
        self._int8 = int8
        # The kernels have only pointers. This keeps the tensors alive.
        self._held: list[Tensor] = []

    def pack(
        self,
        weights: Rows,
        *,
        alike: Rows = (),
        is_exact: bool = False,
    ) -> MatrixSpec:
        """Pack matrices whose outputs follow each other, as one matrix.

        Args:
          alike: the matrix gets a format that fits these, too.
          is_exact: it gets float32 numbers.
        """
        num_inputs = _count_inputs(weights[0])
        spec = MatrixSpec(
            num_outputs=sum(_count_outputs(each) for each in weights),
            num_inputs=num_inputs,
        )
        spec.format, spec.group_size = (
            (_FLOAT32, 0) if is_exact else self._choose_format([*weights, *alike])
        )
        if spec.group_size:
            spec.columns = self._point_to_columns(weights[0])
        packed = torch.empty(
            self._library.count_packed(ctypes.byref(spec)), dtype=torch.uint8
        )
        described = [_describe(each) for each in weights]
        sources = (SourceSpec * len(weights))(*(each for each, _ in described))
        self._library.pack(
            *(self._pool, ctypes.byref(spec), sources, len(sources)),
            packed.data_ptr(),
        )
        self._held.append(packed)
        spec.weights = packed.data_ptr()
        return spec

    def pack_apart(self, weights: Rows) -> list[MatrixSpec]:
        """Pack matrices whose outputs follow each other, each in the format of its kind."""
        groups = groupby(
            weights, lambda each: (self._choose_format([each]), _key_order(each))
        )
        return [self.pack([*group]) for _, group in groups]

    def point(self, tensor: Tensor | None) -> int | None:
        """Return a pointer to the numbers of a tensor, as float32."""
        if tensor is None:
            return None
        numbers = tensor.detach().to(torch.float32).contiguous()
        self._held.append(numbers)
        return numbers.data_ptr()

    def _point_to_columns(self, weights: Weights) -> int | None:
        """Return a pointer to the inputs of stored codes; None if they are in order."""
        order = _find_order(weights)
        if order is None:
            return None
        self._held.append(order)
        return order.data_ptr()

    def _choose_format(self, weights: Rows) -> tuple[int, int]:
        """Return the format that holds some matrices, and the size of its groups.

        The codes of 4 bits fit into 8, so a matrix of several kinds takes the larger. Codes with
        different orders of inputs become numbers.
        """
        if len(set(map(_key_order, weights))) > 1:
            return NUMBERS[self._dtype], 0
        kinds = set(map(name_kind, weights))
        has_numbers = bool(kinds & set(_TENSOR_KINDS.values()))
        if has_numbers and not self._int8:
            return NUMBERS[self._dtype], 0
        tables = {_TABLES.get(kind) for kind in kinds}
        if len(tables) == 1 and (table := tables.pop()) is not None:
            return table, 32
        group_size = 16 if kinds & _SMALL_GROUPS else 32
        if kinds <= _FOUR_BITS and self._int8:
            return _INT4, group_size
        if all(map(_has_large_groups, weights)):
            group_size = _LARGE_GROUP
        if kinds <= _FOUR_BITS:
            return _INT4_INPUTS16, group_size
        return _INT8 if self._int8 else _INT8_INPUTS16, group_size


def split(weights: Rows, count: int) -> list[Rows]:
    """Cut matrices whose outputs follow each other into `count` of equal size."""
    places = np.arange(sum(map(_count_outputs, weights)))
    return [take(weights, each) for each in np.split(places, count)]


def take(weights: Rows, places: NDArray[np.int64]) -> Rows:
    """Return the matrices of some outputs, in another order.

    Args:
      places: of the outputs, among those of all matrices.
    """
    ends = np.cumsum([*map(_count_outputs, weights)])
    owners = np.searchsorted(ends, places, side="right")
    taken: list[Weights] = []
    for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(owners)) + 1):
        owner = owners[run[0]]
        own = places[run] - (ends[owner - 1] if owner else 0)
        taken.append(_take_one(weights[owner], own))
    return taken


def _take_one(weights: Weights, places: NDArray[np.int64]) -> Weights:
    if isinstance(weights, GgufMatrix):
        return weights.take(places)
    chosen: Tensor | slice = torch.from_numpy(places)
    if np.array_equal(places, np.arange(places[0], places[0] + len(places))):
        # No copy.
        chosen = slice(places[0], places[0] + len(places))
    if isinstance(weights, StoredWeights):
        return weights.take(chosen)
    return weights[chosen]


def _count_outputs(weights: Weights) -> int:
    return len(weights) if isinstance(weights, Tensor) else weights.num_outputs


def _count_inputs(weights: Weights) -> int:
    return weights.shape[1] if isinstance(weights, Tensor) else weights.num_inputs


def has_other_columns(weights: Weights) -> bool:
    """Return whether the inputs of a product have another order than their numbers here."""
    return isinstance(weights, GgufMatrix) and weights.columns is not None


def name_kind(weights: Weights) -> str:
    """Return ggml's name of the type of weights, or the format of stored ones."""
    if isinstance(weights, Tensor):
        return _TENSOR_KINDS[weights.dtype]
    return weights.kind if isinstance(weights, GgufMatrix) else weights.format


def _has_large_groups(weights: Weights) -> bool:
    """Return whether _LARGE_GROUP inputs share a scale, or can share one."""
    if isinstance(weights, StoredWeights):
        return weights.group % _LARGE_GROUP == 0
    return isinstance(weights, Tensor)


def _find_order(weights: Weights) -> Tensor | None:
    """Return the input of each stored code; None if they are in order."""
    return weights.order if isinstance(weights, StoredWeights) else None


def _key_order(weights: Weights) -> bytes | None:
    """Return the order of inputs as a key; None if they are in order."""
    order = _find_order(weights)
    return None if order is None else order.numpy().tobytes()


def are_numbers(weights: Rows) -> bool:
    """Return whether no weights are codes, so that float32 rounds none of them."""
    return all(name_kind(each) in _TENSOR_KINDS.values() for each in weights)


def _describe(weights: Weights) -> tuple[SourceSpec, object]:
    """Return the structure of weights, and what it points to besides them."""
    if isinstance(weights, StoredWeights):
        return describe_stored(weights)
    kind, num_outputs = _KINDS[name_kind(weights)], _count_outputs(weights)
    if isinstance(weights, Tensor):
        assert weights.stride(1) == 1, "the inputs of a row lie side by side"
        spec = SourceSpec(
            rows=weights.data_ptr(),
            row_bytes=weights.stride(0) * weights.element_size(),
            kind=kind,
            num_outputs=num_outputs,
        )
        return spec, None
    spec = SourceSpec(
        rows=weights.rows.ctypes.data,
        order=None if weights.order is None else weights.order.ctypes.data,
        row_bytes=weights.rows.strides[0],
        kind=kind,
        num_outputs=num_outputs,
    )
    return spec, None
