"""Reads the header of a GGUF file.

The package gguf reads every token of a vocabulary as several arrays, which takes seconds.
This module steps over the vocabulary, which takes a twentieth of a second.

    | magic | version | number of tensors | number of entries |
    | entries: key, type, value ... | tensors: name, sizes, type, place ... | padding |
    | data ... |

Source: ggml's docs/gguf.md. All numbers are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
import struct
from typing import Any

from ..errors import WeightsBroken
from ..types.gguf import GgufFile, GgufTensor

# Types of values -> struct's code. The other two are strings and arrays.
_NUMBERS = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], "BbHhIif?Qqd"))
_STRING, _ARRAY = 8, 9
# Version 1 counted in 32 bits; only the first files had it.
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# More than files of models have. Each takes about a microsecond, in which other threads wait.
_MOST_ENTRIES = 2**16
_MOST_TENSORS = 2**18
_MOST_TEXTS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufEntry:
    """One entry of the metadata.

    Args:
      value: a number or a text; None for an array.
      count: items of an array.
      head: the bytes before the items of an array, without their number.
      raw: all bytes of the entry.
    """

    value: int | float | str | None
    count: int
    head: bytes
    raw: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The header of a file.

    Args:
      raw: all its bytes.
    """

    file: GgufFile
    entries: dict[str, GgufEntry]
    raw: memoryview

    def get_text(self, key: str) -> str | None:
        entry = self.entries.get(key)
        return None if entry is None or entry.value is None else str(entry.value)

    def list_values(self) -> dict[str, Any]:
        """Return the entries: numbers, texts and lists of numbers; other lists are missing."""
        values = {key: _read_value(entry) for key, entry in self.entries.items()}
        return {key: value for key, value in values.items() if value is not None}

    def get_number(self, key: str) -> int | None:
        entry = self.entries.get(key)
        return None if entry is None or entry.value is None else int(entry.value)


def _read_value(entry: GgufEntry) -> Any:
    if not entry.head:
        return entry.value
    (code,) = struct.unpack("<I", entry.head[-4:])
    if code not in _NUMBERS:
        return None
    items = entry.raw[len(entry.head) + struct.calcsize("<Q") :]
    return list(struct.unpack(f"<{entry.count}{_NUMBERS[code]}", items))


def read_header(path: Path, source: str) -> GgufHeader:
    """Read the header of a GGUF file, and check that the file has all of its tensors.

    Raises:
      WeightsBroken: the file is truncated, corrupt or one of several parts.
    """
    try:
        header = _read(path)
    except OSError as error:
        raise WeightsBroken(source, f"{error.strerror or error}") from error
    except (ValueError, LookupError, OverflowError, struct.error) as error:
        is_cut = isinstance(error, struct.error)
        detail = "it ends in its header" if is_cut else error
        reason = f"{path.name} is truncated or is not a GGUF file ({detail})"
        raise WeightsBroken(source, reason) from error
    count = header.get_number("split.count") or 1
    if count > 1:
        reason = f"it is one of {count} parts; join them with llama-gguf-split --merge"
        raise WeightsBroken(source, reason)
    return header


def _read(path: Path) -> GgufHeader:
    size = path.stat().st_size
    with path.open("rb") as file:
        # mmap raises ValueError for an empty file.
        reader = _Reader(mmap(file.fileno(), 0, access=ACCESS_READ))
    if reader.read_bytes(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, num_tensors, num_entries = reader.read("IQQ")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}")
    if num_entries > _MOST_ENTRIES or num_tensors > _MOST_TENSORS:
        raise ValueError(f"it has {num_entries} entries and {num_tensors} tensors")
    entries = dict(reader.read_entry() for _ in range(num_entries))
    tensors = [reader.read_tensor() for _ in range(num_tensors)]
    alignment = entries.get("general.alignment")
    step = int(alignment.value or 0) if alignment is not None else _DEFAULT_ALIGNMENT
    data = -(-reader.place // step) * step if step > 0 else reader.place
    architecture = entries["general.architecture"].value
    placed = tuple(_place(*tensor, data, size) for tensor in tensors)
    return GgufHeader(
        file=GgufFile(path=path, architecture=str(architecture), tensors=placed),
        entries=entries,
        raw=reader.raw[: reader.place],
    )


def _place(
    name: str, shape: tuple[int, ...], code: int, offset: int, data: int, size: int
) -> GgufTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(code)
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_size:
        raise ValueError(f"a row of {name} does not fill its blocks")
    tensor = GgufTensor(
        name=name,
        kind=kind.name,
        shape=shape,
        offset=data + offset,
        num_bytes=prod(shape) // block_size * block_bytes,
    )
    if tensor.offset + tensor.num_bytes > size:
        raise ValueError(f"{name} lies behind its end")
    return tensor


def _find_number(code: int) -> str:
    """Return struct's code of a type of numbers."""
    if code not in _NUMBERS:
        raise ValueError(f"a value has the type {code}")
    return _NUMBERS[code]


class _Reader:
    """Reads one value after the other; raises struct.error and ValueError."""

    def __init__(self, content: mmap) -> None:
        self.raw = memoryview(content)
        self.place = 0
        self._num_texts = 0

    def read(self, format: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{format}", self.raw, self.place)
        self.place += struct.calcsize(f"<{format}")
        return values

    def read_bytes(self, count: int) -> bytes:
        if count > len(self.raw) - self.place:
            raise ValueError("a text lies behind its end")
        self.place += count
        return bytes(self.raw[self.place - count : self.place])

    def read_text(self) -> str:
        (count,) = self.read("Q")
        return self.read_bytes(count).decode()

    def read_entry(self) -> tuple[str, GgufEntry]:
        begin = self.place
        key = self.read_text()
        (code,) = self.read("I")
        value: int | float | str | None = None
        head, count = b"", 0
        if code == _STRING:
            value = self.read_text()
        elif code == _ARRAY:
            (item_code,) = self.read("I")
            head = bytes(self.raw[begin : self.place])
            (count,) = self.read("Q")
            self._skip(item_code, count)
        else:
            (value,) = self.read(_find_number(code))
        raw = self.raw[begin : self.place]
        return key, GgufEntry(value=value, count=count, head=head, raw=raw)

    def read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.read_text()
        (num_dimensions,) = self.read("I")
        sizes = self.read(f"{num_dimensions}Q")
        code, offset = self.read("IQ")
        # ggml writes the numbers of a row first.
        return name, sizes[::-1], code, offset

    def _skip(self, code: int, count: int) -> None:
        if code != _STRING:
            self.place += count * struct.calcsize(f"<{_find_number(code)}")
            return
        self._num_texts += count
        if self._num_texts > _MOST_TEXTS:
            raise ValueError(f"it has {self._num_texts} texts")
        unpack, raw, place = struct.Struct("<Q").unpack_from, self.raw, self.place
        for _ in range(count):
            place += 8 + unpack(raw, place)[0]
        self.place = place
