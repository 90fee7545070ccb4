"""Sums over processes, called by the kernels in the middle of a step."""

from __future__ import annotations

import ctypes

import torch

from ....kernels.structs import SUM
from ...shards.group import TensorGroup


class NativeSums:
    """Adds up the parts that the processes of a group have computed.

    Attributes:
      address: of the function, for the kernels; it lives as long as this object.
    """

    def __init__(self, group: TensorGroup) -> None:
        self._group = group
        self._error: Exception | None = None
        self._function = SUM(self._sum)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def check(self) -> None:
        """Raise the error of the last step: C++ lets no exception through."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _sum(self, address: int, count: int) -> None:
        # After a failure, the step ends without further waits.
        if self._error is not None:
            return
        try:
            numbers = (ctypes.c_float * count).from_address(address)
            self._group.sum(torch.frombuffer(numbers, dtype=torch.float32))
        except Exception as error:
            self._error = error
