"""Reads the pickle of a tensor with a machine of few opcodes, which runs no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .records import (
    BROKEN,
    ITEM_SIZES,
    NO_TENSOR,
    OUTSIDE,
    WRONG_TYPE,
    MalformedTensor,
    SparseTensor,
    StridedTensor,
)


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
    raise MalformedTensor(NO_TENSOR)


def _rebuild_sparse_tensor(args: tuple[object, ...]) -> SparseTensor:
    match args:
        case (
            "torch.sparse_coo",
            # Older versions lack the last field, which says whether all indices differ.
            # It is not used here.
            (StridedTensor() as indices, StridedTensor() as values, size)
            | (StridedTensor() as indices, StridedTensor() as values, size, _),
        ):
            return SparseTensor(indices=indices, values=values, size=_read_ints(size))
        case (str(layout), tuple()) if layout != "torch.sparse_coo":
            raise MalformedTensor("of the sparse formats only COO is taken")
    raise MalformedTensor(NO_TENSOR)


def _rebuild_parameter(args: tuple[object, ...]) -> object:
    match args:
        case (StridedTensor() | SparseTensor() as tensor, bool(), None):
            return tensor
    raise MalformedTensor(NO_TENSOR)


def _take_only(args: tuple[object, ...]) -> object:
    match args:
        case (only,):
            return only
    raise MalformedTensor(NO_TENSOR)


def _make_no_hooks(args: tuple[object, ...]) -> None:
    if args:
        raise MalformedTensor(NO_TENSOR)


def _read_ints(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int for n in value):
        raise MalformedTensor(NO_TENSOR)
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

_CONSTANTS: dict[bytes, object] = {b")": (), b"N": None, b"\x88": True, b"\x89": False}
# Bytes of an integer, and whether one of them has its sign.
_INTEGERS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_SHORT_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}

# No shape or size in a file needs a longer integer.
_MAX_INTEGER_BYTES = 8


class PickleMachine:
    """Runs a pickle of protocol 2, torch.save's default, that builds one tensor.

    It makes tuples, numbers, strings and the records of this module. It allocates no
    more than the pickle's length. Every unknown opcode ends it with an error.

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
        """Return the object that the pickle describes.

        Raises:
          MalformedTensor: it is not the pickle of a tensor, or it is damaged.
        """
        try:
            while (opcode := self._take(1)) != b".":
                self._step(opcode)
            return self._stack.pop()
        # The pickle uses a value that is missing, or a string that is not UTF-8.
        except (IndexError, KeyError, UnicodeDecodeError):
            raise MalformedTensor(BROKEN) from None

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
                raise MalformedTensor(NO_TENSOR)

    def _take(self, num_bytes: int) -> bytes:
        piece = self._program[self._at : self._at + num_bytes]
        if len(piece) < num_bytes:
            raise MalformedTensor(BROKEN)
        self._at += num_bytes
        return piece

    def _take_integer(self, num_bytes: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(num_bytes), "little", signed=signed)

    def _take_long(self) -> int:
        num_bytes = self._take_integer(1)
        if num_bytes > _MAX_INTEGER_BYTES:
            raise MalformedTensor(OUTSIDE)
        return self._take_integer(num_bytes, signed=True)

    def _take_line(self) -> bytes:
        end = self._program.find(b"\n", self._at)
        if end < 0:
            raise MalformedTensor(BROKEN)
        return self._take(end + 1 - self._at)[:-1]

    def _check_protocol(self) -> None:
        if self._take_integer(1) != 2:
            raise MalformedTensor("torch.save must use its default pickle protocol")

    def _make_tuple(self, begin: int) -> None:
        if not 0 <= begin <= len(self._stack):
            raise MalformedTensor(BROKEN)
        self._stack[begin:] = [tuple(self._stack[begin:])]

    def _find_global(self) -> object:
        name = self._take_line(), self._take_line()
        if name in _GLOBALS:
            return _GLOBALS[name]
        # The older ones of the unsupported types have storage classes of their own.
        if name[1].endswith(b"Storage") or name[1] == b"_rebuild_tensor_v3":
            raise MalformedTensor(WRONG_TYPE)
        raise MalformedTensor(NO_TENSOR)

    def _find_storage(self, reference: object) -> _Storage:
        match reference:
            # The last string is the device of the sender. It is not used here.
            case ("storage", _StorageType(dtype), str(key), str(), int(num_elements)):
                data = self._files[f"data/{key}"]
                if len(data) != num_elements * ITEM_SIZES[dtype]:
                    raise MalformedTensor(BROKEN)
                return _Storage(dtype, data)
        raise MalformedTensor(NO_TENSOR)

    def _call(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Function) or not isinstance(args, tuple):
            raise MalformedTensor(NO_TENSOR)
        self._stack.append(function.call(args))
