"""Run one step of pooling: tokens in, vectors, scores and similarities out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
import torch
from torch import Tensor

from ...config import PoolingConfig
from ...types.pooling import (
    PoolingInput,
    PoolingParams,
    PoolingPlan,
    PoolingResult,
    PoolingRow,
)
from ...types.sentence import SentenceFolder
from ...types.tensors import TensorBytes
from ..encoder import EncodedInputs, LoadedEncoder
from .loading import load_tasks
from .query_cache import QueryCache
from .tasks import PooledBatch
from .tokens import find_tokens

# Enough for a matrix product of the kind that texts need.
_WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Rows that get the same kind of result.

    Args:
      numbers: the numbers of these rows in the plan.
      is_scored: their results are kept or compared on the device, and not returned.
    """

    params: PoolingParams
    is_scored: bool
    numbers: tuple[int, ...]


class PoolingRunner:
    """An encoder, its tasks, and the results that it keeps.

    Args:
      encoder: no other runner may use it at the same time.
      folder: the model's.
      sentence: the contents of sentence-transformers' files; None if there are none.
      config: overrides the files.

    Raises:
      WeightsBroken: the folder's modules cannot be loaded.
      UnsupportedModel: a module cannot be run.
      InvalidConfig: an option makes no sense for the encoder's task.
    """

    def __init__(
        self,
        encoder: LoadedEncoder,
        folder: Path,
        sentence: SentenceFolder | None,
        config: PoolingConfig,
    ) -> None:
        loaded = load_tasks(encoder, folder, sentence, config)
        self.info = loaded.info
        self._encoder = encoder
        self._tasks = loaded.tasks
        self._queries = QueryCache(
            encoder.device, averages_similarity=loaded.averages_similarity
        )

    @torch.inference_mode()
    def step(self, plan: PoolingPlan) -> PoolingResult:
        """Run a plan; blocks until its results are on the host.

        Call it in one thread at a time.
        """
        self._queries.release(plan.releases)
        tensors = self._run(plan.rows) if plan.rows else ()
        return PoolingResult(
            step_id=plan.step_id, tensors=tensors, num_kept=len(self._queries)
        )

    def warm_up(self) -> None:
        """Run a text before any request comes.

        The first calls in a process choose and prepare the device's routines, and no
        client should wait for that.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._encoder.info.max_model_len)
        text = PoolingInput(token_ids=array("i", [0] * num_tokens))
        rows = tuple(
            PoolingRow(input=text, params=PoolingParams(task=task))
            for task in self.info.tasks
        )
        self.step(PoolingPlan(step_id=0, rows=rows))

    def _run(self, rows: tuple[PoolingRow, ...]) -> tuple[TensorBytes, ...]:
        encoded = self._encoder.encode([row.input for row in rows])
        given: list[tuple[Sequence[int], PooledBatch]] = []
        shares: dict[int, Tensor] = {}
        for group in _group(rows):
            made = self._make(rows, group, encoded)
            if group.is_scored:
                shares.update(zip(group.numbers, made.split()))
            else:
                given.append((group.numbers, made))
        # All results are kept before any is compared, because rows come in any order.
        self._queries.keep(rows, shares)
        compared, scores = self._queries.compare(rows, shares)
        given.append((compared, PooledBatch(values=scores)))
        return _answer(len(rows), given)

    def _make(
        self, rows: tuple[PoolingRow, ...], group: _Group, encoded: EncodedInputs
    ) -> PooledBatch:
        tokens = find_tokens(
            [rows[number].input for number in group.numbers],
            [encoded.spans[number] for number in group.numbers],
            self._encoder.device,
        )
        return self._tasks[group.params.task](encoded.states, tokens, group.params)


def _answer(
    num_rows: int, given: Sequence[tuple[Sequence[int], PooledBatch]]
) -> tuple[TensorBytes, ...]:
    """Bring results to the host, in the order of their rows."""
    answers = [NOTHING] * num_rows
    arrays = read_back([made.values for _, made in given])
    for (numbers, made), values in zip(given, arrays):
        for number, tensor in zip(numbers, cut(values, made.sizes)):
            answers[number] = tensor
    return tuple(answers)


def _group(rows: Iterable[PoolingRow]) -> list[_Group]:
    numbers: dict[tuple[PoolingParams, bool], list[int]] = {}
    for number, row in enumerate(rows):
        is_scored = row.keep_as is not None or row.compare_with is not None
        params = row.params
        if is_scored and params.task == "embed":
            # The cosine is the product of vectors of length 1.
            params = replace(params, use_activation=True)
        numbers.setdefault((params, is_scored), []).append(number)
    return [
        _Group(params=params, is_scored=is_scored, numbers=tuple(members))
        for (params, is_scored), members in numbers.items()
    ]


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
