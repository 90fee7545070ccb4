"""Files of one tensor, as strangers send them: torch.save's and safetensors'.

Nothing of Python or torch runs on what a file says. torch.load, also with
weights_only, allocates what the file claims, has written out of bounds for crafted
sparse tensors, and holds the GIL for as long as it reads; a restricted pickle.Unpickler
still allocates by claimed sizes and may be told to set attributes. Here a zip directory
is read by its bounds, and the pickle inside by a machine that knows the opcodes of a
tensor and no others. What comes out is a view of the file's bytes, checked to lie inside
them, so that reading allocates nothing whatever the file claims. safetensors is simple
enough to be read the same way; its library copies the elements under the GIL.

The zip's checksums are left alone, which torch.load does not: a wrong one harms nobody
but its sender, and TCP and TLS have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
import struct
import sys

import msgspec

# Bytes of an element by torch's name of its type: those that embeddings may have, and
# that of a sparse tensor's indices.
FLOAT_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_ITEM_SIZES = {**FLOAT_SIZES, "int64": 8}

# torch.save writes seven entries and one for each further storage; a pickle of some
# hundred bytes, and safetensors a header of as many and its metadata.
_MAX_ENTRIES = 64
_MAX_HEADER_BYTES = 64 * 1024

# torch prints, indexes and saves more, but no embeddings have them.
_MAX_DIMS = 8

WRONG_TYPE = f"its elements must be of one of the types {', '.join(FLOAT_SIZES)}"
_NO_TENSOR = (
    "must hold one plain tensor, as torch.save writes it; a list, a dict or any other "
    "object is not taken"
)
_BROKEN = "is not a whole file: parts of it are cut off or damaged"
_OUTSIDE = "its shape and strides reach outside the elements that it holds"


class MalformedTensor(ValueError):
    """Raised when bytes are no file that can be taken; says why and quotes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedTensor:
    """Elements in a file, and how they lie there.

    Args:
      dtype: torch's name of their type.
      storage: the bytes of a whole number of elements.
      offset, strides: in elements.

    Raises:
      MalformedTensor: an element would lie outside the storage.
    """

    dtype: str
    storage: memoryview
    offset: int
    size: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.size) != len(self.strides) or len(self.size) > _MAX_DIMS:
            raise MalformedTensor(_OUTSIDE)
        if min(self.offset, *self.size, *self.strides, 0) < 0:
            raise MalformedTensor(_OUTSIDE)
        last = sum((n - 1) * step for n, step in zip(self.size, self.strides))
        if self.num_elements and self.offset + last >= self.num_stored:
            raise MalformedTensor(_OUTSIDE)

    @property
    def num_elements(self) -> int:
        return math.prod(self.size)

    @property
    def num_stored(self) -> int:
        return len(self.storage) // self.item_size

    @property
    def item_size(self) -> int:
        return _ITEM_SIZES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTensor:
    """A tensor in coordinate format, whose indices nobody has looked at yet.

    Args:
      indices: (num_sparse_dims, num_values) int64.
      values: (num_values, *size[num_sparse_dims:]); at the same indices they add up.

    Raises:
      MalformedTensor: the parts do not fit together.
    """

    indices: StridedTensor
    values: StridedTensor
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.indices.dtype != "int64" or len(self.indices.size) != 2:
            raise MalformedTensor(_OUTSIDE)
        num_sparse_dims, num_values = self.indices.size
        if not 1 <= num_sparse_dims <= len(self.size) <= _MAX_DIMS:
            raise MalformedTensor(_OUTSIDE)
        if self.values.size != (num_values, *self.size[num_sparse_dims:]):
            raise MalformedTensor(_OUTSIDE)
        # Strides of 0 would make of a few bytes any number of values to be added.
        for part in (self.indices, self.values):
            if part.num_elements > part.num_stored:
                raise MalformedTensor(_OUTSIDE)

    @property
    def dtype(self) -> str:
        return self.values.dtype


FiledTensor = StridedTensor | SparseTensor


def read_tensor_file(data: memoryview) -> FiledTensor:
    """Find the one tensor that a file holds. Its elements stay where they are.

    Raises:
      MalformedTensor: it is neither of the formats, holds anything else, or lies.
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


# safetensors: the length of a JSON header, little-endian in 8 bytes; the header; the
# elements. Source: https://huggingface.co/docs/safetensors, "Format".

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


def _read_safetensors(data: memoryview) -> StridedTensor:
    (length,) = _unpack(_LENGTH, data, 0)
    end = _LENGTH.size + length
    if length > _MAX_HEADER_BYTES or end > len(data):
        raise MalformedTensor("its safetensors header is too long")
    entry = _read_safetensors_header(data[_LENGTH.size : end])
    if entry.dtype not in _SAFETENSORS_TYPES:
        raise MalformedTensor(WRONG_TYPE)
    # Here already: the strides of thousands of dimensions would take seconds.
    if len(entry.shape) > _MAX_DIMS:
        raise MalformedTensor(_OUTSIDE)
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


def _read_safetensors_header(text: memoryview) -> _SafetensorsEntry:
    try:
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        if len(header) != 1:
            raise MalformedTensor("must hold exactly one tensor")
        return msgspec.json.decode(header.popitem()[1], type=_SafetensorsEntry)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MalformedTensor("its safetensors header is not one") from None


# The zip that torch.save writes: every entry stored as it is, under one folder; no
# comment; the elements of storage K are data/K.

# Each is a signature of four bytes and its fields. Source: PKWARE's APPNOTE.TXT 4.3.16,
# 4.3.12 and 4.3.7.
_ZIP_END = struct.Struct("<4x4H2IH")
_ZIP_END_SIGNATURE = b"PK\x05\x06"
_ZIP_ENTRY = struct.Struct("<4x6H3I5H2I")
_ZIP_ENTRY_SIGNATURE = b"PK\x01\x02"
_ZIP_LOCAL = struct.Struct("<4x5H3I2H")
_ZIP_LOCAL_SIGNATURE = b"PK\x03\x04"


def _unpack(
    layout: struct.Struct, data: memoryview, at: int, signature: bytes = b""
) -> tuple[int, ...]:
    if not 0 <= at <= len(data) - layout.size:
        raise MalformedTensor(_BROKEN)
    if bytes(data[at : at + len(signature)]) != signature:
        raise MalformedTensor(_BROKEN)
    return layout.unpack_from(data, at)


def _list_zip_entries(data: memoryview) -> dict[str, memoryview]:
    end = _unpack(_ZIP_END, data, len(data) - _ZIP_END.size, _ZIP_END_SIGNATURE)
    num_entries, at = end[3], end[5]
    if num_entries > _MAX_ENTRIES:
        raise MalformedTensor(_NO_TENSOR)
    entries: dict[str, memoryview] = {}
    for _ in range(num_entries):
        fields = _unpack(_ZIP_ENTRY, data, at, _ZIP_ENTRY_SIGNATURE)
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
    length, extra = _unpack(_ZIP_LOCAL, data, local, _ZIP_LOCAL_SIGNATURE)[8:10]
    begin = local + _ZIP_LOCAL.size + length + extra
    if begin + size > len(data):
        raise MalformedTensor(_BROKEN)
    return data[begin : begin + size]


def _read_torch_file(data: memoryview) -> FiledTensor:
    entries = _list_zip_entries(data)
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise MalformedTensor(_NO_TENSOR)
    folder = pickles[0].removesuffix("data.pkl")
    files = {
        name.removeprefix(folder): entry
        for name, entry in entries.items()
        if name.startswith(folder)
    }
    # Older versions of torch do not say and wrote their machine's.
    if files.get("byteorder", b"little") != sys.byteorder.encode():
        raise MalformedTensor("was written on a machine of another byte order")
    if len(files["data.pkl"]) > _MAX_HEADER_BYTES:
        raise MalformedTensor(_NO_TENSOR)
    tensor = _Machine(files["data.pkl"], files).run()
    if not isinstance(tensor, StridedTensor | SparseTensor):
        raise MalformedTensor(_NO_TENSOR)
    return tensor


# The pickle inside: what a tensor's opcodes may name and what is done instead of it.


@dataclass(frozen=True, slots=True)
class _StorageType:
    dtype: str


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    data: memoryview


@dataclass(frozen=True, slots=True)
class _Function:
    call: Callable[[tuple[object, ...]], object]


def _rebuild_tensor(args: tuple[object, ...]) -> StridedTensor:
    match args:
        case (_Storage(dtype, data), int(offset), size, strides, bool(), None):
            return StridedTensor(
                dtype=dtype,
                storage=data,
                offset=offset,
                size=_read_ints(size),
                strides=_read_ints(strides),
            )
    raise MalformedTensor(_NO_TENSOR)


def _rebuild_sparse_tensor(args: tuple[object, ...]) -> SparseTensor:
    match args:
        case (
            "torch.sparse_coo",
            # Files of older versions do not have the last one, which says whether no
            # index comes twice. Nobody relies on it here.
            (StridedTensor() as indices, StridedTensor() as values, size)
            | (StridedTensor() as indices, StridedTensor() as values, size, _),
        ):
            return SparseTensor(indices=indices, values=values, size=_read_ints(size))
        case (str(layout), tuple()) if layout != "torch.sparse_coo":
            raise MalformedTensor("of the sparse formats only COO is taken")
    raise MalformedTensor(_NO_TENSOR)


def _rebuild_parameter(args: tuple[object, ...]) -> object:
    match args:
        case (StridedTensor() | SparseTensor() as tensor, bool(), None):
            return tensor
    raise MalformedTensor(_NO_TENSOR)


def _take_only(args: tuple[object, ...]) -> object:
    match args:
        case (only,):
            return only
    raise MalformedTensor(_NO_TENSOR)


def _make_no_hooks(args: tuple[object, ...]) -> None:
    if args:
        raise MalformedTensor(_NO_TENSOR)


def _read_ints(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int for n in value):
        raise MalformedTensor(_NO_TENSOR)
    return value


_GLOBALS: dict[tuple[bytes, bytes], object] = {
    (b"torch._utils", b"_rebuild_tensor_v2"): _Function(_rebuild_tensor),
    (b"torch._utils", b"_rebuild_sparse_tensor"): _Function(_rebuild_sparse_tensor),
    (b"torch._utils", b"_rebuild_parameter"): _Function(_rebuild_parameter),
    (b"torch.serialization", b"_get_layout"): _Function(_take_only),
    (b"torch", b"Size"): _Function(_take_only),
    (b"collections", b"OrderedDict"): _Function(_make_no_hooks),
    (b"torch", b"HalfStorage"): _StorageType("float16"),
    (b"torch", b"BFloat16Storage"): _StorageType("bfloat16"),
    (b"torch", b"FloatStorage"): _StorageType("float32"),
    (b"torch", b"DoubleStorage"): _StorageType("float64"),
    (b"torch", b"LongStorage"): _StorageType("int64"),
}

_CONSTANTS: dict[bytes, object] = {
    b")": (),
    b"N": None,
    b"\x88": True,
    b"\x89": False,
}
# Bytes of an integer, and whether one of them has its sign.
_INTEGERS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_SHORT_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}

# An integer of more bytes is no shape of anything in a file.
_MAX_INTEGER_BYTES = 8


class _Machine:
    """Runs a pickle of protocol 2, torch.save's default, that builds one tensor.

    It makes tuples, numbers, strings and the records of this module; it allocates no
    more than the pickle's length, and every opcode that it does not know ends it.

    Args:
      program: the pickle.
      files: storages by their names in the archive.
    """

    def __init__(self, program: memoryview, files: Mapping[str, memoryview]) -> None:
        self._program = bytes(program)
        self._files = files
        self._at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """The object that the pickle stands for.

        Raises:
          MalformedTensor: it is not the pickle of a tensor, or it is damaged.
        """
        try:
            while (opcode := self._take(1)) != b".":
                self._step(opcode)
            return self._stack.pop()
        # It pops or recalls what is not there, or a string is none.
        except (IndexError, KeyError, UnicodeDecodeError):
            raise MalformedTensor(_BROKEN) from None

    def _step(self, opcode: bytes) -> None:
        if opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode])
        elif opcode in _INTEGERS:
            self._stack.append(self._take_integer(*_INTEGERS[opcode]))
        elif opcode in _SHORT_TUPLES:
            self._make_tuple(len(self._stack) - _SHORT_TUPLES[opcode])
        else:
            self._step_rarely(opcode)

    def _step_rarely(self, opcode: bytes) -> None:
        match opcode:
            case b"\x80":
                self._check_protocol()
            case b"c":
                self._stack.append(self._find_global())
            case b"q":
                self._memo[self._take_integer(1)] = self._stack[-1]
            case b"h":
                self._stack.append(self._memo[self._take_integer(1)])
            case b"X":
                self._stack.append(self._take(self._take_integer(4)).decode())
            case b"\x8a":
                self._stack.append(self._take_long())
            case b"(":
                self._marks.append(len(self._stack))
            case b"t":
                self._make_tuple(self._marks.pop())
            case b"Q":
                self._stack.append(self._find_storage(self._stack.pop()))
            case b"R":
                self._call()
            case _:
                raise MalformedTensor(_NO_TENSOR)

    def _take(self, num_bytes: int) -> bytes:
        piece = self._program[self._at : self._at + num_bytes]
        if len(piece) < num_bytes:
            raise MalformedTensor(_BROKEN)
        self._at += num_bytes
        return piece

    def _take_integer(self, num_bytes: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(num_bytes), "little", signed=signed)

    def _take_long(self) -> int:
        num_bytes = self._take_integer(1)
        if num_bytes > _MAX_INTEGER_BYTES:
            raise MalformedTensor(_OUTSIDE)
        return self._take_integer(num_bytes, signed=True)

    def _take_line(self) -> bytes:
        end = self._program.find(b"\n", self._at)
        if end < 0:
            raise MalformedTensor(_BROKEN)
        return self._take(end + 1 - self._at)[:-1]

    def _check_protocol(self) -> None:
        if self._take_integer(1) != 2:
            raise MalformedTensor("torch.save must use its default pickle protocol")

    def _make_tuple(self, begin: int) -> None:
        if not 0 <= begin <= len(self._stack):
            raise MalformedTensor(_BROKEN)
        self._stack[begin:] = [tuple(self._stack[begin:])]

    def _find_global(self) -> object:
        name = self._take_line(), self._take_line()
        if name in _GLOBALS:
            return _GLOBALS[name]
        # Of the types that are not taken, older ones have storages of their own.
        if name[1].endswith(b"Storage") or name[1] == b"_rebuild_tensor_v3":
            raise MalformedTensor(WRONG_TYPE)
        raise MalformedTensor(_NO_TENSOR)

    def _find_storage(self, reference: object) -> _Storage:
        match reference:
            # The device, which comes before the number of elements, is the sender's.
            case ("storage", _StorageType(dtype), str(key), str(), int(num_elements)):
                data = self._files[f"data/{key}"]
                if len(data) != num_elements * _ITEM_SIZES[dtype]:
                    raise MalformedTensor(_BROKEN)
                return _Storage(dtype, data)
        raise MalformedTensor(_NO_TENSOR)

    def _call(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Function) or not isinstance(args, tuple):
            raise MalformedTensor(_NO_TENSOR)
        self._stack.append(function.call(args))
