"""What pooling gave, as a response carries it: JSON, base64 or plain bytes.

Blocking: runs in a renderer worker, and no call within it holds the GIL for more than a
fraction of a millisecond, or every open stream would wait for a long answer.

A broken model's numbers that are not finite are `null` in JSON, which has no word for
them, and themselves in bytes: nobody takes them for a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# Writes float32 in as few digits as give it back. msgspec writes the float64 that is
# nearest: (384,) takes 6 us and 4.7 kB against 16 us and 8.0 kB, (512, 128) 1.4 ms and
# 785 kB against 3.2 ms and 1357 kB.
import orjson
import pybase64

from ...errors import InvalidParameter
from ...types.tensors import TensorBytes

Dtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "big", "little"]

_TORCH_NAMES: dict[Dtype, str] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}

# Numbers that are written in one call: 0.25 ms of orjson, which holds the GIL.
_NUMBERS_AT_ONCE = 8192

# How far from 1 the length of a vector is that was brought to it in 16 bits. Source:
# vLLM 0.33, which compares chunks so, too.
_UNIT_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFormat:
    """How a client wants vectors.

    Args:
      encoding: numbers in JSON; or their bytes, as base64 in JSON or as they are.
      dtype: of the bytes. What is too large for 16 bits becomes infinite, and the
        largest number there is in 8.
      endianness: of the bytes.
    """

    encoding: Literal["float", "base64", "bytes"] = "float"
    dtype: Dtype = "float32"
    endianness: Endianness = "native"


def write_json(tensor: TensorBytes) -> bytes:
    """Write a tensor as nested lists; one without dimensions as a number."""
    return _write_array(_view(tensor))


def write_bytes(tensor: TensorBytes, format: VectorFormat) -> bytes:
    """Write a tensor's numbers one after the other, as `format` has them."""
    numbers = _view(tensor)
    if format.dtype == "float32":
        return _swap(numbers.view(np.uint32), format.endianness).tobytes()
    # Here because `import trioserve` need not wait for it.
    import torch

    # Copied: torch warns of memory that it may not write to.
    converted = torch.from_numpy(numbers.copy()).to(
        getattr(torch, _TORCH_NAMES[format.dtype])
    )
    if converted.element_size() == 1:
        return converted.view(torch.uint8).numpy().tobytes()
    # NumPy has no bfloat16; as integers the bytes are the same.
    halves = converted.view(torch.int16).numpy()
    return _swap(halves, format.endianness).tobytes()


def write_base64(tensor: TensorBytes, format: VectorFormat) -> bytes:
    """Write the bytes as a JSON string, quotes included."""
    return b'"%b"' % pybase64.b64encode(write_bytes(tensor, format))


def pack_bits(tensor: TensorBytes, *, signed: bool) -> bytes:
    """Keep of each number whether it is positive; write eight as one, as JSON.

    Args:
      signed: 128 less, so that the results are int8 (Cohere's "binary"); otherwise they
        are uint8 ("ubinary"). The first number of eight is the highest bit.

    Raises:
      InvalidParameter: the vectors' size is no multiple of 8.
    """
    numbers = _view(tensor)
    size = numbers.shape[-1]
    if size % 8:
        raise InvalidParameter(
            "embedding_types",
            f"bits are packed by eight, and these vectors have {size} numbers",
        )
    packed = np.packbits(numbers > 0, axis=-1)
    if signed:
        # The same as to subtract 128 from a number that had room for it.
        packed = (packed ^ np.uint8(128)).view(np.int8)
    return _write_array(packed)


def average(chunks: Sequence[TensorBytes], weights: Sequence[int]) -> TensorBytes:
    """Return the weighted mean of vectors, of length 1 if all of them are.

    Args:
      chunks: (size,) each; one is given back as it is.
      weights: tokens of each, at least 1.
    """
    if len(chunks) == 1:
        return chunks[0]
    vectors = np.stack([_view(chunk) for chunk in chunks]).astype(np.float64)
    mean = np.average(vectors, axis=0, weights=weights)
    lengths = np.linalg.norm(vectors, axis=1)
    length = np.linalg.norm(mean)
    # Opposite vectors may cancel each other out: nothing has no direction.
    if length > 0 and np.allclose(lengths, 1.0, rtol=_UNIT_TOLERANCE, atol=0.0):
        mean /= length
    return TensorBytes(
        data=mean.astype(np.float32).tobytes(), dtype="float32", shape=mean.shape
    )


def read_floats(tensor: TensorBytes) -> list[float]:
    """The numbers of a tensor, in C order."""
    floats: list[float] = _view(tensor).ravel().tolist()
    return floats


def _view(tensor: TensorBytes) -> NDArray[np.float32]:
    assert tensor.dtype == "float32", "pooling gives float32"
    return np.frombuffer(tensor.data, dtype=np.float32).reshape(tensor.shape)


def _swap(numbers: NDArray[Any], endianness: Endianness) -> NDArray[Any]:
    order: dict[Endianness, Any] = {"native": "=", "big": ">", "little": "<"}
    wanted = numbers.dtype.newbyteorder(order[endianness])
    return numbers.astype(wanted, copy=False)


def _write_array(array: NDArray[Any]) -> bytes:
    if array.ndim == 0:
        return _dumps(array[()])
    rows = max(1, _NUMBERS_AT_ONCE // max(1, math.prod(array.shape[1:])))
    # Each piece is a list of its own; without its brackets it is a part of one.
    pieces = [
        _dumps(array[begin : begin + rows])[1:-1]
        for begin in range(0, len(array), rows)
    ]
    return b"[%b]" % b",".join(pieces)


def _dumps(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
