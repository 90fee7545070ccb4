"""Tensors out of the bytes in which they cross rooms that know no torch."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..steps import TensorBytes


def read_tensor(tensor: TensorBytes) -> Tensor:
    """Copy a whole tensor out of its bytes."""
    rows = tensor.shape[0] if tensor.shape else 1
    return read_rows(tensor, 0, rows).view(tensor.shape)


def read_rows(tensor: TensorBytes, begin: int, end: int) -> Tensor:
    """Copy the rows [begin, end) of the first dimension out of a tensor's bytes.

    A copy, because the bytes may be read-only or shared; by numpy, because it lets
    others run meanwhile, where making a bytearray of them would not.
    """
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    row_shape = tensor.shape[1:]
    row_bytes = math.prod(row_shape) * dtype.itemsize
    data = memoryview(tensor.data).cast("B")[begin * row_bytes : end * row_bytes]
    copy = torch.empty(len(data), dtype=torch.uint8)
    np.copyto(copy.numpy(), np.frombuffer(data, dtype=np.uint8))
    return copy.view(dtype).view(end - begin, *row_shape)
