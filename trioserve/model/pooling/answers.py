"""Bring the results of a step to the host, and cut them into one for each input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ...types.tensors import TensorBytes

Floats = NDArray[np.float32]

# The answer for an input whose result stays on the device.
NOTHING = TensorBytes(data=b"", dtype="float32", shape=(0,))


def read_back(tensors: Sequence[Tensor]) -> list[Floats]:
    """Copy tensors to the host, all in one transfer."""
    full = [tensor.reshape(-1) for tensor in tensors if tensor.numel()]
    if not full:
        return [np.zeros(tensor.shape, dtype=np.float32) for tensor in tensors]
    # Most steps have one kind of result, which need not be joined.
    host = (full[0] if len(full) == 1 else torch.cat(full)).cpu().numpy()
    arrays: list[Floats] = []
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        arrays.append(host[begin:end].reshape(tensor.shape))
        begin = end
    return arrays


def cut(array: Floats, sizes: tuple[int, ...] | None) -> Iterator[TensorBytes]:
    """Cut the results of several inputs into separate bytes.

    The bytes are copies. A view would keep the memory of the whole step until its slowest
    client has read its result.

    Args:
      array: the rows of all inputs.
      sizes: number of rows of each input. None means one row for each, which is returned
        without the dimension of rows.
    """
    shape = array.shape[1:]
    if sizes is None:
        for row in array:
            yield TensorBytes(data=row.tobytes(), dtype="float32", shape=shape)
        return
    end = 0
    for size in sizes:
        begin, end = end, end + size
        data = array[begin:end].tobytes()
        yield TensorBytes(data=data, dtype="float32", shape=(size, *shape))
