"""Finds the one tensor of a file.

torch.save writes a zip file. All entries are uncompressed, in one folder, without a
comment. data.pkl describes the tensor, and data/K has the elements of storage K.

safetensors writes the length of a JSON header, the header, the elements. Source:
https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import math
import struct
import sys

import msgspec

from .pickle_machine import PickleMachine
from .records import (
    BROKEN,
    FLOAT_SIZES,
    MAX_DIMS,
    MAX_HEADER_BYTES,
    NO_TENSOR,
    OUTSIDE,
    WRONG_TYPE,
    FiledTensor,
    MalformedTensor,
    SparseTensor,
    StridedTensor,
    unpack,
)

# torch.save writes seven entries, and one for each further storage.
_MAX_ENTRIES = 64

# Each is a signature of four bytes and its fields. Source: PKWARE's APPNOTE.TXT 4.3.16,
# 4.3.12 and 4.3.7.
_ZIP_END = struct.Struct("<4x4H2IH")
_ZIP_END_SIGNATURE = b"PK\x05\x06"
_ZIP_ENTRY = struct.Struct("<4x6H3I5H2I")
_ZIP_ENTRY_SIGNATURE = b"PK\x01\x02"
_ZIP_LOCAL = struct.Struct("<4x5H3I2H")
_ZIP_LOCAL_SIGNATURE = b"PK\x03\x04"

# Little-endian.
_LENGTH = struct.Struct("<Q")
_SAFETENSORS_TYPES = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


def read_tensor_file(data: memoryview) -> FiledTensor:
    """Find the one tensor in a file. Its elements are not copied.

    Raises:
      MalformedTensor: the file has another format, another content, or is inconsistent.
    """
    begin = bytes(data[:9])
    if begin.startswith(_ZIP_LOCAL_SIGNATURE):
        return _read_torch_file(data)
    if begin[8:] == b"{":
        return _read_safetensors(data)
    if begin.startswith(b"\x80"):
        raise MalformedTensor(
            "is a bare pickle; torch.save must write its zip format, its default"
        )
    raise MalformedTensor("is a file neither of torch.save nor of safetensors")


def _list_zip_entries(data: memoryview) -> dict[str, memoryview]:
    end = unpack(_ZIP_END, data, len(data) - _ZIP_END.size, _ZIP_END_SIGNATURE)
    num_entries, at = end[3], end[5]
    if num_entries > _MAX_ENTRIES:
        raise MalformedTensor(NO_TENSOR)
    entries: dict[str, memoryview] = {}
    for _ in range(num_entries):
        fields = unpack(_ZIP_ENTRY, data, at, _ZIP_ENTRY_SIGNATURE)
        length, extra, comment = fields[9:12]
        name = bytes(data[at + _ZIP_ENTRY.size :][:length]).decode("latin-1")
        if name in entries:
            raise MalformedTensor("two entries of its zip have the same name")
        entries[name] = _find_zip_entry(data, fields)
        at += _ZIP_ENTRY.size + length + extra + comment
    return entries


def _find_zip_entry(data: memoryview, fields: tuple[int, ...]) -> memoryview:
    flags, method, packed_size, size, local = *fields[2:4], *fields[7:9], fields[15]
    is_encrypted = flags & 1
    if method != 0 or is_encrypted or packed_size != size:
        raise MalformedTensor("its zip is compressed, as torch.save's never is")
    length, extra = unpack(_ZIP_LOCAL, data, local, _ZIP_LOCAL_SIGNATURE)[8:10]
    begin = local + _ZIP_LOCAL.size + length + extra
    if begin + size > len(data):
        raise MalformedTensor(BROKEN)
    return data[begin : begin + size]


def _read_torch_file(data: memoryview) -> FiledTensor:
    entries = _list_zip_entries(data)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise MalformedTensor(NO_TENSOR)
    folder = pickles[0].removesuffix("data.pkl")
    files = {
        name.removeprefix(folder): entry
        for name, entry in entries.items()
        if name.startswith(folder)
    }
    # Older versions of torch write no entry; they use the byte order of their machine.
    if files.get("byteorder", b"little") != sys.byteorder.encode():
        raise MalformedTensor("was written on a machine of another byte order")
    if len(files["data.pkl"]) > MAX_HEADER_BYTES:
        raise MalformedTensor(NO_TENSOR)
    tensor = PickleMachine(files["data.pkl"], files).run()
    if not isinstance(tensor, StridedTensor | SparseTensor):
        raise MalformedTensor(NO_TENSOR)
    return tensor


class _SafetensorsEntry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _read_safetensors(data: memoryview) -> StridedTensor:
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
