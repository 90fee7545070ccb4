"""Exchanges of processes on one machine, over memory that they share.

A sum of 576 numbers takes microseconds here, and a tenth of a millisecond or more over
connections of the system. A step of a model asks for two in each layer.
"""

from __future__ import annotations

import ctypes
import mmap

from .library import Library
from .structs import ExchangeSpec

# Of each process, twice. Longer messages go in parts, which stay in the caches of the cores.
_PLACE_BYTES = 256 * 1024

# As in native/exchange.h.
_COUNTER_BYTES = 64


class ExchangeLate(Exception):
    """Raised when another process has not come to an exchange in time."""


def count_exchange_bytes(count: int) -> int:
    """Return the size of the memory that so many processes share."""
    return count * (_COUNTER_BYTES + 2 * _PLACE_BYTES)


class SharedExchange:
    """One process's part in the exchanges of a group.

    All processes make the same exchanges in the same order, each in one thread at a time.
    After a failure there are no others: this process may be in the middle of an exchange
    that the others finish.

    Args:
      memory: of count_exchange_bytes, zeros at first, mapped by all processes.
      index, count: number of this process, from 0, and of all processes.
      timeout_seconds: for the others to come to an exchange.
    """

    def __init__(
        self,
        library: Library,
        memory: mmap.mmap,
        *,
        index: int,
        count: int,
        timeout_seconds: float,
    ) -> None:
        self._library = library
        self._memory = memory
        self._has_failed = False
        self._spec = ExchangeSpec(
            memory=ctypes.addressof(ctypes.c_char.from_buffer(memory)),
            place_bytes=_PLACE_BYTES,
            num_done=0,
            index=index,
            count=count,
            timeout_seconds=timeout_seconds,
        )

    def sum(self, numbers: int, count: int) -> None:
        """Replace numbers by their sum over all processes.

        All processes get the same bits.

        Args:
          numbers: address of `count` float32 numbers.

        Raises:
          ExchangeLate
        """
        self._check(
            not self._has_failed
            and self._library.sum_shared(ctypes.byref(self._spec), numbers, count)
        )

    def gather(self, data: int, size: int, to: int) -> None:
        """Gather bytes of all processes.

        Args:
          data: address of `size` bytes.
          to: address of (processes, size) bytes.

        Raises:
          ExchangeLate
        """
        self._check(
            not self._has_failed
            and self._library.gather_shared(ctypes.byref(self._spec), data, size, to)
        )

    def _check(self, has_worked: int) -> None:
        if not has_worked:
            self._has_failed = True
            raise ExchangeLate
