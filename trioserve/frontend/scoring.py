"""Scores of documents for queries, by each kind of pooling model.

A cross-encoder reads each query together with its document. Other models turn texts into
vectors: queries are read once and stay on the device, documents follow, and only their
similarity leaves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ..engine.pooling.engine import TensorEngine
from ..engine.pooling.request import TensorRequest
from ..render import PoolingRenderer, TextOptions, count_text, run_together
from ..types.client import Client
from ..types.pooling import PoolingInput, PoolingParams, QueryKey
from ..types.tensors import TensorBytes
from .pooling_jobs import PoolingJobs, as_kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """Options of scoring.

    Args:
      use_activation: see PoolingParams; for cross-encoders.
      query_param, document_param: the request's fields, for errors.
    """

    text: TextOptions = field(default_factory=TextOptions)
    use_activation: bool | None = None
    query_param: str = "queries"
    document_param: str = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The score of each document, and the number of tokens that were read."""

    values: list[float]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """One request for scores.

    Args:
      queries: one query, or one for each document.
    """

    engine: TensorEngine
    renderer: PoolingRenderer
    queries: Sequence[str]
    documents: Sequence[str]
    options: ScoreOptions
    num_tokens: int
    priority: int
    client: Client
    on_submit: Callable[[], None]

    async def score_pairs(self) -> Scores:
        """Let a classifier with one label read each query with its document."""
        params = PoolingParams(
            task="classify", use_activation=self.options.use_activation
        )
        jobs = PoolingJobs(self.renderer, self.options.text)
        num_pairs = len(self.documents)
        pairs = list(zip(_repeat(self.queries, num_pairs), self.documents))
        with self._open_request(num_pairs, params) as request:

            async def run(numbers: range) -> Scores:
                inputs = await jobs.render_pairs(
                    pairs, numbers, self.options.document_param
                )
                return _read_scores(inputs, await request.pool(inputs))

            return _join(await self._run_jobs(run, self.documents))

    async def compare(self) -> Scores:
        """Compare the vectors of documents with the vectors of queries."""
        params = PoolingParams(task=self.engine.pooling.task, use_activation=True)
        num_inputs = len(self.queries) + len(self.documents)
        with self._open_request(num_inputs, params) as request:
            comparison = _Comparison(request, self.renderer, self.options)
            kept = await self._run_jobs(
                partial(comparison.keep, self.queries), self.queries
            )
            keys = [key for part in kept for key in part]
            # Documents are queued before their query has been read: the scheduler lets
            # no document overtake it.
            parts = await self._run_jobs(
                partial(
                    comparison.compare,
                    self.documents,
                    _repeat(keys, len(self.documents)),
                ),
                self.documents,
            )
        scores = _join(parts)
        num_tokens = scores.num_tokens + comparison.num_query_tokens
        return replace(scores, num_tokens=num_tokens)

    @contextmanager
    def _open_request(
        self, num_inputs: int, params: PoolingParams
    ) -> Iterator[TensorRequest]:
        with (
            self.engine.open_request(
                num_inputs,
                params,
                num_tokens=self.num_tokens,
                priority=self.priority,
                client=self.client,
                param=self.options.document_param,
                on_submit=self.on_submit,
            ) as request,
            self.renderer.room.enter(
                count_text(self.queries) + count_text(self.documents),
                self.client.name,
            ),
        ):
            yield request

    async def _run_jobs(
        self, run: Callable[[range], Awaitable[T]], texts: Sequence[str]
    ) -> list[T]:
        batches = self.renderer.cut_batches(texts)
        return await run_together([partial(run, batch) for batch in batches])


class _Comparison:
    """Keeps the queries of one request on the device, and compares documents with them."""

    def __init__(
        self, request: TensorRequest, renderer: PoolingRenderer, options: ScoreOptions
    ) -> None:
        self.num_query_tokens = 0
        self._request = request
        self._options = options
        self._queries = PoolingJobs(renderer, as_kind(options.text, "query"))
        self._documents = PoolingJobs(renderer, as_kind(options.text, "document"))

    async def keep(self, queries: Sequence[str], numbers: range) -> list[QueryKey]:
        rendered = await self._queries.render_texts(
            queries, numbers, self._options.query_param
        )
        # Invariant: compared texts are not cut into chunks.
        inputs = [each for (each,) in rendered]
        self.num_query_tokens += sum(each.num_tokens for each in inputs)
        return [self._request.keep(each) for each in inputs]

    async def compare(
        self, documents: Sequence[str], keys: Sequence[QueryKey], numbers: range
    ) -> Scores:
        rendered = await self._documents.render_texts(
            documents, numbers, self._options.document_param
        )
        inputs = [each for (each,) in rendered]
        tensors = await self._request.pool(
            inputs, compare_with=keys[numbers.start : numbers.stop]
        )
        return _read_scores(inputs, tensors)


def _repeat(items: Sequence[T], count: int) -> Sequence[T]:
    return list(items) * count if len(items) == 1 else items


def _read_scores(
    inputs: Sequence[PoolingInput], tensors: Sequence[TensorBytes]
) -> Scores:
    # Imported here because NumPy takes a tenth of a second, which would delay --help.
    from ..render.pooling.vectors import read_floats

    return Scores(
        values=[number for tensor in tensors for number in read_floats(tensor)],
        num_tokens=sum(each.num_tokens for each in inputs),
    )


def _join(parts: Sequence[Scores]) -> Scores:
    return Scores(
        values=[value for part in parts for value in part.values],
        num_tokens=sum(part.num_tokens for part in parts),
    )
