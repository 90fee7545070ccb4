"""Writes the results of pooling as JSON, base64 or plain bytes.

Blocking: runs in a renderer worker. No call in here holds the GIL for more than a
fraction of a millisecond. Otherwise every open stream would wait for a long answer.

Numbers that are not finite, from a broken model, become `null` in JSON, which has no
form for them. As bytes they are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# orjson writes the shortest digits that identify a float32; msgspec writes the nearest
# float64. (384,) takes 6 us and 4.7 kB, with msgspec 16 us and 8.0 kB; (512, 128) takes
# 1.4 ms and 785 kB, with msgspec 3.2 ms and 1357 kB.
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

# The most numbers that are written in one call: 0.25 ms of orjson, which holds the GIL.
_NUMBERS_AT_ONCE = 8192

# The error in the length of a vector that was normalised to 1 in 16 bits. Source: vLLM
# 0.33, which compares the lengths of chunks in the same way.
_UNIT_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFormat:
    """The format of vectors in a response.

    Args:
      encoding: numbers in JSON, base64 of their bytes in JSON, or plain bytes.
      dtype: the type of the numbers in the bytes. Numbers too large for 16 bits become
        infinite; those too large for 8 bits become the largest number.
      endianness: the byte order.
    """

    encoding: Literal["float", "base64", "bytes"] = "float"
    dtype: Dtype = "float32"
    endianness: Endianness = "native"


def write_json(tensor: TensorBytes) -> bytes:
    """Write a tensor as nested lists; a tensor without dimensions as a number."""
    return _write_array(_view(tensor))


def write_bytes(tensor: TensorBytes, format: VectorFormat) -> bytes:
    """Write a tensor's numbers as bytes, in the type and byte order of `format`."""
    numbers = _view(tensor)
    if format.dtype == "float32":
        return _swap(numbers.view(np.uint32), format.endianness).tobytes()
    # Imported here, so that `import trioserve` stays fast.
    import torch

    # Copied, because torch warns of read-only memory.
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
    """Write the signs of the numbers as JSON, each eight as the bits of an integer.

    A positive number is a 1; the first number is the highest bit.

    Args:
      signed: subtract 128, so that the integers are int8 (Cohere's "binary"); otherwise
        they are uint8 ("ubinary").

    Raises:
      InvalidParameter: the vectors' size is not a multiple of 8.
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
        # The same bits as after subtracting 128.
        packed = (packed ^ np.uint8(128)).view(np.int8)
    return _write_array(packed)


def average(chunks: Sequence[TensorBytes], weights: Sequence[int]) -> TensorBytes:
    """Return the weighted mean of vectors; its length is 1 if theirs is.

    Args:
      chunks: (size,) each; a single one is returned unchanged.
      weights: the number of tokens of each, at least 1.
    """
    if len(chunks) == 1:
        return chunks[0]
    vectors = np.stack([_view(chunk) for chunk in chunks]).astype(np.float64)
    mean = np.average(vectors, axis=0, weights=weights)
    lengths = np.linalg.norm(vectors, axis=1)
    length = np.linalg.norm(mean)
    # The mean of opposite vectors may be zero, which cannot be normalised.
    if length > 0 and np.allclose(lengths, 1.0, rtol=_UNIT_TOLERANCE, atol=0.0):
        mean /= length
    return TensorBytes(
        data=mean.astype(np.float32).tobytes(), dtype="float32", shape=mean.shape
    )


def read_floats(tensor: TensorBytes) -> list[float]:
    """Return the numbers of a tensor, in C order."""
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
    # Each piece is a list of its own; without brackets it is a part of the whole list.
    pieces = [
        _dumps(array[begin : begin + rows])[1:-1]
        for begin in range(0, len(array), rows)
    ]
    return b"[%b]" % b",".join(pieces)


def _dumps(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
