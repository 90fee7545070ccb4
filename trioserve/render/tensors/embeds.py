"""Decodes prompts that are vectors: from a client's base64 to the model's own type.

All checks run before memory is allocated for the result: the file is read in place, and
its shape must fit a prompt of this model. All work that grows with the payload
releases the GIL, so that the event loop continues: base64 by pybase64, work on elements
by torch, keys by hashlib.
"""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
import math
from typing import TYPE_CHECKING

import pybase64

from . import (
    FLOAT_SIZES,
    WRONG_TYPE,
    FiledTensor,
    MalformedTensor,
    SparseTensor,
    StridedTensor,
    read_tensor_file,
)
from ...errors import ContextLengthExceeded, InvalidParameter
from ...types.prompt import KEY_BYTES
from ...types.tensors import TensorBytes

if TYPE_CHECKING:
    import torch

# A sparse tensor, or one that repeats a row by a stride of 0, is larger than its file.
# One stored value for each row of 4096 float32 numbers is allowed (20 bytes for 16384).
# A kilobyte that claims a gigabyte is refused, because a few such files would fill the
# memory.
_MAX_GROWTH = 1024

# Four blocks of the KV cache with the default block size.
_ROWS_PER_KEY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEmbeds:
    """Vectors that a client sends in place of tokens.

    Args:
      tensor: (num_vectors, hidden_size) in the model's type.
      keys: KEY_BYTES for each vector; all vectors of a group have the group's key.
    """

    tensor: TensorBytes
    keys: bytes


def decode_embeds(
    payload: bytes | memoryview,
    *,
    hidden_size: int,
    dtype: str,
    max_tokens: int,
    param: str,
) -> DecodedEmbeds:
    """Decode vectors from an untrusted payload. Blocks for a second or two per GB.

    Args:
      payload: base64 of a file of torch.save or safetensors with one tensor
        ([1,] num_vectors, hidden_size), dense or sparse COO, of a floating-point type.
      dtype: torch's name of the model's type; numbers that it cannot represent are
        refused.
      max_tokens: the limit of prompt and output together.
      param: its field in the request, for errors.

    Raises:
      InvalidParameter: it is not such a file, or has numbers that are not finite.
      ContextLengthExceeded: the model could not add a single token to them.
    """
    try:
        data = _decode_base64(payload)
        found = read_tensor_file(memoryview(data))
        num_vectors = _count_vectors(found, hidden_size)
        if num_vectors >= max_tokens:
            raise ContextLengthExceeded(
                num_tokens=num_vectors, limit=max_tokens, param=param
            )
        _check_growth(found, len(data))
        vectors = _convert(found, (num_vectors, hidden_size), dtype, len(data))
    except MalformedTensor as error:
        raise InvalidParameter(param, str(error)) from None
    return _pack(vectors, dtype)


def _decode_base64(payload: bytes | memoryview) -> bytearray:
    if not payload:
        raise MalformedTensor("must not be empty")
    try:
        # A bytearray, because torch wants writable memory; makes no copy.
        return pybase64.b64decode_as_bytearray(payload, validate=True)
    except ValueError:
        raise MalformedTensor("must be base64 with its padding and no spaces") from None


def _count_vectors(found: FiledTensor, hidden_size: int) -> int:
    if found.dtype not in FLOAT_SIZES:
        raise MalformedTensor(WRONG_TYPE)
    size = found.size
    if len(size) == 3 and size[0] == 1:
        size = size[1:]
    if len(size) != 2:
        raise MalformedTensor("must have the shape (num_tokens, hidden_size)")
    if size[1] != hidden_size:
        raise MalformedTensor(f"this model's vectors have {hidden_size} numbers")
    if size[0] < 1:
        raise MalformedTensor("must hold at least one vector")
    return size[0]


def _check_growth(found: FiledTensor, file_size: int) -> None:
    if math.prod(found.size) * FLOAT_SIZES[found.dtype] > _MAX_GROWTH * file_size:
        raise MalformedTensor(
            f"holds less than one part in {_MAX_GROWTH} of the numbers that it stands "
            "for; send a dense tensor"
        )


def _convert(
    found: FiledTensor, shape: tuple[int, int], dtype: str, file_size: int
) -> torch.Tensor:
    """Return the vectors in the model's type, in C order.

    Raises:
      MalformedTensor: one of their numbers is not finite, or too large for the type.
    """
    # Imported here, because it takes seconds, and few servers take tensors.
    import torch

    tensor = _fill_in(found) if isinstance(found, SparseTensor) else _view(found)
    source = tensor.reshape(shape)
    vectors = source.to(
        getattr(torch, dtype), memory_format=torch.contiguous_format
    ).contiguous()
    # aminmax is one pass, 20 times as fast as isfinite. With a NaN both bounds are NaN.
    for bound in vectors.aminmax():
        if not bound.isfinite():
            raise MalformedTensor(f"its numbers must be finite, also as {dtype}")
    # Uncopied vectors keep the whole file in memory, even if they are a small part of
    # it.
    if vectors is source and 2 * vectors.nbytes < file_size:
        return vectors.clone()
    return vectors


def _view(tensor: StridedTensor) -> torch.Tensor:
    """Return a tensor of the elements in place. There must be at least one element."""
    import torch

    stored = torch.frombuffer(tensor.storage, dtype=torch.uint8)
    # torch.save aligns to 64 bytes, safetensors to 8; other writers may not align at
    # all.
    if stored.data_ptr() % tensor.item_size:
        stored = stored.clone()
    elements = stored.view(getattr(torch, tensor.dtype))
    return elements.as_strided(tensor.size, tensor.strides, tensor.offset)


def _fill_in(sparse: SparseTensor) -> torch.Tensor:
    """Return a sparse tensor as a dense one.

    torch's own conversion trusts the indices, unless a switch is on. The switch is
    global to the process, so threads that set it would disturb each other.

    Raises:
      MalformedTensor: an index lies outside the tensor.
    """
    import torch

    num_sparse_dims = sparse.indices.size[0]
    sparse_size = sparse.size[:num_sparse_dims]
    dense = torch.zeros(
        (math.prod(sparse_size), *sparse.size[num_sparse_dims:]),
        dtype=getattr(torch, sparse.dtype),
    )
    if sparse.values.num_elements == 0:
        return dense
    rows = torch.zeros(sparse.indices.size[1], dtype=torch.int64)
    for index, length in zip(_view(sparse.indices), sparse_size):
        lowest, highest = index.aminmax()
        if lowest < 0 or highest >= length:
            raise MalformedTensor("an index of it lies outside its shape")
        rows.mul_(length).add_(index)
    return dense.index_add_(0, rows, _view(sparse.values))


def _pack(vectors: torch.Tensor, dtype: str) -> DecodedEmbeds:
    import torch

    # A view through numpy, because a tensor has no buffer interface. A copy into a new
    # bytearray would also have to fill it with zeros first, under the GIL.
    data = vectors.view(torch.uint8).flatten().numpy().data
    num_vectors, hidden_size = vectors.shape
    return DecodedEmbeds(
        tensor=TensorBytes(data=data, dtype=dtype, shape=(num_vectors, hidden_size)),
        keys=_hash_rows(data, len(data) // num_vectors),
    )


def _hash_rows(data: memoryview, row_size: int) -> bytes:
    """Return the keys of all rows: the digest of the group of rows around each.

    So the prefix cache finds common beginnings of tensors in whole groups. One digest
    for each row would be finer, but hashlib releases the GIL in each call: to get it
    back 2048 times beside a busy thread took half a second.
    """
    group_size = _ROWS_PER_KEY * row_size
    keys = []
    for at in range(0, len(data), group_size):
        group = data[at : at + group_size]
        # The first half of SHA-256. Processors have instructions for it, so it takes
        # half the time of BLAKE2b.
        key = hashlib.sha256(group).digest()[:KEY_BYTES]
        keys.append(key * (len(group) // row_size))
    return b"".join(keys)
