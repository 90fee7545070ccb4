"""Prompts that come as vectors: from a client's base64 to the model's own type.

What may go wrong is found before anything is allocated for the result: a file is only
looked at where it lies (tensor_files), and its shape must be a prompt's of this model.
Everything that takes time with the payload releases the GIL, so that the event loop
goes on: base64 by pybase64, element work by torch, keys by hashlib.
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

# A sparse tensor, or one that repeats a row by a stride of 0, says more than it holds.
# One stored value for each row of 4096 in float32 is taken (20 bytes for 16384); a
# kilobyte that claims a gigabyte is not, or a few of them would fill the memory.
_MAX_GROWTH = 1024

# Four blocks of the KV cache, unless these were told to be larger.
_ROWS_PER_KEY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEmbeds:
    """Vectors that a client sent in place of tokens.

    Args:
      tensor: (num_vectors, hidden_size) in the model's type.
      keys: KEY_BYTES for each vector; equal where all of its group are equal.
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
    """Read vectors from what a stranger sent. Blocks for a second or two per GB.

    Args:
      payload: base64 of a file of torch.save or safetensors with one tensor
        ([1,] num_vectors, hidden_size), dense or sparse COO, of a floating-point type.
      dtype: torch's name of the model's type; what does not fit it is refused.
      max_tokens: of prompt and output together.
      param: the request's field, for errors.

    Raises:
      InvalidParameter: it is anything else, or holds numbers that are not finite.
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
        # Writable memory, as torch wants it, and no copy.
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
    """The vectors in the model's type, in C order.

    Raises:
      MalformedTensor: one of their numbers is not finite, or too large for the type.
    """
    # Imported here because it takes seconds, and few servers take tensors.
    import torch

    tensor = _fill_in(found) if isinstance(found, SparseTensor) else _view(found)
    source = tensor.reshape(shape)
    vectors = source.to(
        getattr(torch, dtype), memory_format=torch.contiguous_format
    ).contiguous()
    # One pass, 20 times as fast as isfinite; a NaN anywhere is both bounds.
    for bound in vectors.aminmax():
        if not bound.isfinite():
            raise MalformedTensor(f"its numbers must be finite, also as {dtype}")
    # They lie in the file still, and a big one is not kept for a part of it.
    if vectors is source and 2 * vectors.nbytes < file_size:
        return vectors.clone()
    return vectors


def _view(tensor: StridedTensor) -> torch.Tensor:
    """The elements where they lie. There must be at least one."""
    import torch

    stored = torch.frombuffer(tensor.storage, dtype=torch.uint8)
    # torch.save aligns to 64 bytes, safetensors to 8, others as they like.
    if stored.data_ptr() % tensor.item_size:
        stored = stored.clone()
    elements = stored.view(getattr(torch, tensor.dtype))
    return elements.as_strided(tensor.size, tensor.strides, tensor.offset)


def _fill_in(sparse: SparseTensor) -> torch.Tensor:
    """The dense tensor of a sparse one.

    torch's own is not asked: it trusts indices unless a switch of the whole process is
    on, which threads that set it for themselves take from each other.

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

    # By way of numpy: torch's own tensors are no buffers, and to write into a new
    # bytearray is slow twice, since making one fills it with zeros under the GIL.
    data = vectors.view(torch.uint8).flatten().numpy().data
    num_vectors, hidden_size = vectors.shape
    return DecodedEmbeds(
        tensor=TensorBytes(data=data, dtype=dtype, shape=(num_vectors, hidden_size)),
        keys=_hash_rows(data, len(data) // num_vectors),
    )


def _hash_rows(data: memoryview, row_size: int) -> bytes:
    """Give every row the digest of the group of rows that it stands in.

    What tensors have in common from their beginning on is so found in whole groups. Row
    by row it would be found to the row, but hashlib lets others run during each call,
    and to get the GIL back 2048 times beside a busy thread took half a second.
    """
    group_size = _ROWS_PER_KEY * row_size
    keys = []
    for at in range(0, len(data), group_size):
        group = data[at : at + group_size]
        # Half of SHA-256: with the instructions that processors have for it, it takes
        # half of BLAKE2b's time.
        key = hashlib.sha256(group).digest()[:KEY_BYTES]
        keys.append(key * (len(group) // row_size))
    return b"".join(keys)
