"""Tensors from numbers on the host, and from the bytes that cross rooms.

Numbers are sent without waiting for the device, from pinned memory that is used again
(numbers.py). `torch.tensor(values, device="cuda")` would wait until all earlier work of the device
is done.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import numpy as np
import torch
from torch import Tensor

from ...types.tensors import TensorBytes
from .numbers import StepNumbers


def send_ids(values: Sequence[int], device: torch.device) -> Tensor:
    """Send whole numbers.

    Returns:
      (len(values),) int64 on the device; operators of its stream may use it at once
    """
    return StepNumbers(device).add(np.array(values, dtype=np.int64)).get()


def send_floats(values: Sequence[float], device: torch.device) -> Tensor:
    """Send numbers.

    Returns:
      (len(values),) float32 on the device; operators of its stream may use it at once
    """
    return StepNumbers(device).add(np.array(values, dtype=np.float32)).get()


def read_tensor(tensor: TensorBytes) -> Tensor:
    """Make a tensor from its bytes, by a copy."""
    rows = tensor.shape[0] if tensor.shape else 1
    return read_rows(tensor, 0, rows).view(tensor.shape)


def read_rows(tensor: TensorBytes, begin: int, end: int) -> Tensor:
    """Make a tensor of the rows [begin, end) from a tensor's bytes, by a copy.

    A view is not possible, because the bytes may be read-only or shared. numpy makes
    the copy, because it releases the interpreter's lock during the copy.
    """
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    row_shape = tensor.shape[1:]
    row_bytes = math.prod(row_shape) * dtype.itemsize
    data = memoryview(tensor.data).cast("B")[begin * row_bytes : end * row_bytes]
    copy = torch.empty(len(data), dtype=torch.uint8)
    np.copyto(copy.numpy(), np.frombuffer(data, dtype=np.uint8))
    return copy.view(dtype).view(end - begin, *row_shape)
