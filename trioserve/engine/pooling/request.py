"""One open request of a TensorEngine, and the tensors that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import trio

from ...observe import Owned
from ...types.client import Client
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingInput, PoolingParams, PoolingRow, QueryKey
from ...types.tensors import TensorBytes
from .admission import check_input
from .core import FlowId, JobId


class JobQueue(Protocol):
    """The engine's side that a request uses."""

    @property
    def info(self) -> ModelInfo:
        """The model that reads the inputs."""

    def add(
        self, rows: Sequence[PoolingRow], request: TensorRequest, results: Results
    ) -> list[JobId]:
        """Queue rows; `results` gets their tensors."""

    def abort(self, jobs: Collection[JobId]) -> None:
        """Drop jobs that have no result yet."""

    def next_key(self) -> QueryKey:
        """Return a key that no other request has."""


class TensorRequest(Owned):
    """The inputs of one request; see TensorEngine.open_request.

    Attributes:
      kept: key -> job of each input whose result the device keeps, or will keep.
      flow, priority, client: by these its inputs take turns with inputs of other requests.
    """

    def __init__(
        self,
        queue: JobQueue,
        params: PoolingParams,
        flow: FlowId,
        priority: int,
        client: Client,
        on_submit: Callable[[], None],
    ) -> None:
        super().__init__()
        self.kept: dict[QueryKey, JobId] = {}
        self.flow = flow
        self.priority = priority
        self.client = client
        self._queue = queue
        self._params = params
        self._on_submit = on_submit
        self._open: set[Results] = set()

    async def pool(
        self,
        inputs: Sequence[PoolingInput],
        *,
        compare_with: Sequence[QueryKey] | None = None,
    ) -> list[TensorBytes]:
        """Read inputs and return their tensors, in the order of the inputs.

        Args:
          compare_with: one key for each input; then the result is the similarity of the
            input with the kept result of that key.

        Raises:
          InvalidParameter, ContextLengthExceeded: the model cannot read an input.
          EngineDied, ShuttingDown: the engine ended before it read all of them.
        """
        rows = [
            PoolingRow(
                input=each,
                params=self._params,
                compare_with=None if compare_with is None else compare_with[index],
            )
            for index, each in enumerate(inputs)
        ]
        for each in inputs:
            check_input(each, self._queue.info)
        results = Results(len(rows))
        jobs = self._queue.add(rows, self, results)
        self._on_submit()
        self._open.add(results)
        try:
            return await results.wait()
        finally:
            self._open.remove(results)
            self._queue.abort(jobs)

    def keep(self, each: PoolingInput) -> QueryKey:
        """Queue an input whose result stays on the device; does not wait for it.

        Raises:
          InvalidParameter, ContextLengthExceeded: the model cannot read the input.
        """
        check_input(each, self._queue.info)
        key = self._queue.next_key()
        row = PoolingRow(input=each, params=self._params, keep_as=key)
        [self.kept[key]] = self._queue.add([row], self, Results(1))
        self._on_submit()
        return key

    def fail(self, error: Exception) -> None:
        for results in self._open:
            results.fail(error)


class Results:
    """The tensors of some inputs, until the last one has come."""

    def __init__(self, num_inputs: int) -> None:
        self._tensors: list[TensorBytes | None] = [None] * num_inputs
        self._num_missing = num_inputs
        self._error: Exception | None = None
        self._is_over = trio.Event()

    def set(self, index: int, tensor: TensorBytes) -> bool:
        """Take the tensor of an input; returns whether it was the last one."""
        self._tensors[index] = tensor
        self._num_missing -= 1
        return self._num_missing == 0

    def hand_out(self) -> None:
        """Wake the task that waits for the tensors."""
        self._is_over.set()

    def fail(self, error: Exception) -> None:
        """Raise `error` in the task that waits, unless all tensors have come."""
        self._error = error
        self._is_over.set()

    async def wait(self) -> list[TensorBytes]:
        if self._tensors:
            await self._is_over.wait()
        if self._error is not None and self._num_missing:
            raise self._error
        tensors = [tensor for tensor in self._tensors if tensor is not None]
        assert len(tensors) == len(self._tensors), "each input has a result"
        return tensors
