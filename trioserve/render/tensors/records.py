"""The tensors that files describe, checked to lie inside the file."""

from __future__ import annotations

from dataclasses import dataclass
import math
import struct

# Bytes of an element by torch's name of its type: the types of embeddings, and the type
# of a sparse tensor's indices.
FLOAT_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEM_SIZES = {**FLOAT_SIZES, "int64": 8}

# A pickle of torch.save has some hundred bytes; a header of safetensors has as many,
# and its metadata.
MAX_HEADER_BYTES = 64 * 1024

# torch supports more dimensions, but embeddings have two or three.
MAX_DIMS = 8

WRONG_TYPE = f"its elements must be of one of the types {', '.join(FLOAT_SIZES)}"
NO_TENSOR = (
    "must hold one plain tensor, as torch.save writes it; a list, a dict or any other "
    "object is not taken"
)
BROKEN = "is not a whole file: parts of it are cut off or damaged"
OUTSIDE = "its shape and strides reach outside the elements that it holds"


class MalformedTensor(ValueError):
    """Raised when a file is refused. Its text quotes nothing of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedTensor:
    """A tensor whose elements lie in a file.

    Args:
      dtype: torch's name of the elements' type.
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
        if len(self.size) != len(self.strides) or len(self.size) > MAX_DIMS:
            raise MalformedTensor(OUTSIDE)
        if min(self.offset, *self.size, *self.strides, 0) < 0:
            raise MalformedTensor(OUTSIDE)
        last = sum((n - 1) * step for n, step in zip(self.size, self.strides))
        if self.num_elements and self.offset + last >= self.num_stored:
            raise MalformedTensor(OUTSIDE)

    @property
    def num_elements(self) -> int:
        return math.prod(self.size)

    @property
    def num_stored(self) -> int:
        return len(self.storage) // self.item_size

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTensor:
    """A tensor in coordinate format. Its indices are not checked yet.

    Args:
      indices: (num_sparse_dims, num_values) int64.
      values: (num_values, *size[num_sparse_dims:]); values with equal indices are
        added.

    Raises:
      MalformedTensor: the parts do not fit together.
    """

    indices: StridedTensor
    values: StridedTensor
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.indices.dtype != "int64" or len(self.indices.size) != 2:
            raise MalformedTensor(OUTSIDE)
        num_sparse_dims, num_values = self.indices.size
        if not 1 <= num_sparse_dims <= len(self.size) <= MAX_DIMS:
            raise MalformedTensor(OUTSIDE)
        if self.values.size != (num_values, *self.size[num_sparse_dims:]):
            raise MalformedTensor(OUTSIDE)
        # With strides of 0 a few bytes would be any number of values.
        for part in (self.indices, self.values):
            if part.num_elements > part.num_stored:
                raise MalformedTensor(OUTSIDE)

    @property
    def dtype(self) -> str:
        return self.values.dtype


FiledTensor = StridedTensor | SparseTensor


def unpack(
    layout: struct.Struct, data: memoryview, at: int, signature: bytes = b""
) -> tuple[int, ...]:
    """Read the fields of a record at an offset in a file.

    Raises:
      MalformedTensor: the file is too short, or the record has another signature.
    """
    if not 0 <= at <= len(data) - layout.size:
        raise MalformedTensor(BROKEN)
    if bytes(data[at : at + len(signature)]) != signature:
        raise MalformedTensor(BROKEN)
    return layout.unpack_from(data, at)
