"""safetensors: the length of a JSON header, the header, the elements.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import math
import struct

import msgspec

from .records import (
    FLOAT_SIZES,
    MAX_DIMS,
    MAX_HEADER_BYTES,
    OUTSIDE,
    WRONG_TYPE,
    MalformedTensor,
    StridedTensor,
    unpack,
)

# Little-endian.
_LENGTH = struct.Struct("<Q")
_SAFETENSORS_TYPES = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


class _SafetensorsEntry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(data: memoryview) -> StridedTensor:
    (length,) = unpack(_LENGTH, data, 0)
    end = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or end > len(data):
        raise MalformedTensor("its safetensors header is too long")
    entry = _read_header(data[_LENGTH.size : end])
    if entry.dtype not in _SAFETENSORS_TYPES:
        raise MalformedTensor(WRONG_TYPE)
    # Checked before the strides, which would take seconds for thousands of dimensions.
    if len(entry.shape) > MAX_DIMS:
        raise MalformedTensor(OUTSIDE)
    size = tuple(entry.shape)
    tensor = StridedTensor(
        dtype=_SAFETENSORS_TYPES[entry.dtype],
        storage=data[end:],
        offset=0,
        size=size,
        strides=tuple(math.prod(size[k + 1 :]) for k in range(len(size))),
    )
    num_bytes = tensor.num_elements * FLOAT_SIZES[tensor.dtype]
    if entry.data_offsets != (0, num_bytes) or num_bytes != len(tensor.storage):
        raise MalformedTensor("its safetensors header does not match what follows it")
    return tensor


def _read_header(text: memoryview) -> _SafetensorsEntry:
    try:
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        if len(header) != 1:
            raise MalformedTensor("must hold exactly one tensor")
        return msgspec.json.decode(header.popitem()[1], type=_SafetensorsEntry)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MalformedTensor("its safetensors header is not valid") from None
