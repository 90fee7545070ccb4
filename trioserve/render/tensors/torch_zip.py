"""Reads the zip file of torch.save.

All entries are uncompressed, in one folder, without a comment. data.pkl describes the
tensor, and data/K has the elements of storage K.
"""

from __future__ import annotations

import struct
import sys

from .pickle_machine import PickleMachine
from .records import (
    BROKEN,
    MAX_HEADER_BYTES,
    NO_TENSOR,
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
ZIP_LOCAL_SIGNATURE = b"PK\x03\x04"


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
    length, extra = unpack(_ZIP_LOCAL, data, local, ZIP_LOCAL_SIGNATURE)[8:10]
    begin = local + _ZIP_LOCAL.size + length + extra
    if begin + size > len(data):
        raise MalformedTensor(BROKEN)
    return data[begin : begin + size]


def read_torch_file(data: memoryview) -> FiledTensor:
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
