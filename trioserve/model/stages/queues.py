"""Links between stages that are threads of one process."""

from __future__ import annotations

from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from .links import Channels, StageLost

# A stage that is a thread cannot be gone without its program, but it can have failed.
_TIMEOUT_SECONDS = 60.0


class QueueChannel:
    """A Channel whose messages are the tensors themselves."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Tensor | None] = SimpleQueue()

    def send(self, tensor: Tensor) -> None:
        self._queue.put(tensor)

    def expect(self, shape: tuple[int, ...], dtype: torch.dtype) -> _Awaited:
        return _Awaited(self._queue, shape, dtype)

    def close(self) -> None:
        """Let whoever waits know that nothing comes any more."""
        self._queue.put(None)


class _Awaited:
    def __init__(
        self,
        queue: SimpleQueue[Tensor | None],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self._queue = queue
        self._shape = shape
        self._dtype = dtype

    def wait(self) -> Tensor:
        try:
            tensor = self._queue.get(timeout=_TIMEOUT_SECONDS)
        except Empty:
            raise StageLost("another stage is silent") from None
        if tensor is None:
            raise StageLost("another stage has ended")
        assert (tensor.shape, tensor.dtype) == (self._shape, self._dtype)
        return tensor


def make_queue_channels(num_stages: int) -> tuple[Channels, ...]:
    """Return the channels of each stage, for at least two stages."""
    between = [QueueChannel() for _ in range(num_stages - 1)]
    tokens = QueueChannel()
    return tuple(
        Channels(before=before, after=after, tokens=ends)
        for before, after, ends in zip(
            [None, *between],
            [*between, None],
            [tokens, *[None] * (num_stages - 2), tokens],
        )
    )
