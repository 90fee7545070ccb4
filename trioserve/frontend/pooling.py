"""The front end of models that pool: texts in; vectors, labels and scores out.

A request is cut into jobs of a few texts. Each job is tokenized, read and converted on its
own. So the device reads the first texts while later ones are tokenized, and no job holds a
thread for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from ..engine.pooling.engine import TensorEngine
from ..errors import InvalidParameter, TaskNotServed
from ..render import PoolingRenderer, TextInput, TextOptions, count_text, run_together
from ..types.client import Client
from ..types.pooling import (
    LongText,
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    PoolingTask,
)
from ..types.tensors import TensorBytes
from .pooling_jobs import PoolingJobs, as_kind
from .scoring import ScoreOptions, Scores, Scoring
from .served import ServedModel, StreamLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Functions import NumPy themselves: it takes a tenth of a second, which would delay --help.

T = TypeVar("T")

# Results of at most this many numbers are converted on the event loop. That takes 50 us, as
# long as starting a thread.
_FEW_NUMBERS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled(Generic[T]):
    """The results of texts, in their order, and the number of tokens that were read."""

    results: list[T]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """A classifier's result for a text.

    Args:
      label: the most likely label.
      probs: the probability of each label, in the order of PoolingInfo.labels.
    """

    label: str
    probs: tuple[float, ...]


class PoolingEngine(ServedModel[TensorEngine, PoolingRenderer]):
    """A model that pools texts; open_pooling_engine gives one.

    Args:
      engine, renderer: see ServedModel.
      long_texts: the treatment of long texts, for requests that do not choose one.
    """

    def __init__(
        self,
        engine: TensorEngine,
        renderer: PoolingRenderer,
        *,
        long_texts: LongText = "refuse",
    ) -> None:
        super().__init__(engine, renderer)
        self._long_texts: LongText = long_texts

    @property
    def pooling(self) -> PoolingInfo:
        return self.engine.pooling

    def choose_long_text(self, *, can_average: bool) -> LongText:
        """Return the treatment of long texts, for a request that does not choose one.

        Args:
          can_average: each text becomes one vector, so that the vectors of chunks can be
            averaged. Otherwise long texts are refused instead of cut into chunks.
        """
        if self._long_texts == "chunk" and not can_average:
            return "refuse"
        return self._long_texts

    async def embed(
        self,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        kind: str | None = None,
        prompt_name: str | None = None,
        long_text: LongText | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts.

        Args:
          dimensions: number of leading numbers of a Matryoshka model's vectors to keep.
          kind: "query" or "document", for models that distinguish them.
          prompt_name: name of the model's prompt that is put before each text.
          long_text: "refuse", "truncate" or "chunk"; the default is the server's option.

        Returns:
          (len(texts), dimensions) float32

        Raises:
          TrioserveError: see errors/.
        """
        import numpy as np

        pooled = await self._pool_arrays(
            "embed",
            texts,
            dimensions=dimensions,
            options=self._make_options("embed", kind, prompt_name, long_text),
        )
        size = dimensions or self.pooling.num_outputs
        return np.array(pooled, np.float32).reshape(len(texts), size)

    async def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        kind: str | None = None,
        prompt_name: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """Embed each token of texts, as late interaction does; see embed.

        Returns:
          (num_tokens, size) float32 for each text
        """
        options = self._make_options("token_embed", kind, prompt_name)
        return await self._pool_arrays("token_embed", texts, options=options)

    async def classify(self, texts: Sequence[str]) -> list[Classification]:
        """Classify texts.

        Raises:
          TrioserveError: see errors/.
        """
        pooled = await self.pool(
            texts, PoolingParams(task="classify"), finish=self._read_classification
        )
        return pooled.results

    async def pool(
        self,
        texts: Sequence[TextInput],
        params: PoolingParams,
        options: TextOptions | None = None,
        *,
        finish: Callable[[int, TensorBytes], T],
        priority: int = 0,
        client: Client = Client(),
        limits: StreamLimits = StreamLimits(),
        param: str = "input",
        on_submit: Callable[[], None] = lambda: None,
    ) -> Pooled[T]:
        """Read texts and convert the tensor of each.

        They are one request: the first text that fails ends the others.

        Args:
          finish: converts a text's tensor, given the text's number; it is called in a
            renderer worker or, for few numbers, in the event loop.
          priority: requests with a lower number go first; equals take turns.
          client: the one that the request belongs to.
          limits: the time that the request may take; it is only looked at once.
          param: the request's field with the texts, for errors.
          on_submit: is called when the device can begin with some of the texts.

        Raises:
          all errors of PoolingRenderer.render_texts and TensorEngine.open_request, and
          DeadlineUnreachable: other requests would make it late.
          RendererFull: other requests have too much text.
        """
        jobs = PoolingJobs(self.renderer, options or self._make_options(params.task))
        num_characters = count_text(texts)
        has_ids = bool(texts) and isinstance(texts[0], tuple)
        num_tokens = num_characters if has_ids else self._ratio.estimate(num_characters)
        self.check_deadline(num_tokens, limits, client)
        with (
            self.engine.open_request(
                len(texts),
                params,
                num_tokens=num_tokens,
                priority=priority,
                client=client,
                param=param,
                on_submit=on_submit,
            ) as request,
            self.renderer.room.enter(num_characters, client.name),
        ):

            async def run(numbers: range) -> list[tuple[T, int]]:
                rendered = await jobs.render_texts(texts, numbers, param)
                tensors = await request.pool([each for one in rendered for each in one])
                work = partial(_finish, numbers, rendered, tensors, finish)
                return await self._run_finishing(work, tensors)

            batches = self.renderer.cut_batches(texts)
            done = await run_together([partial(run, batch) for batch in batches])
        num_tokens = sum(num_tokens for part in done for _, num_tokens in part)
        if not has_ids:
            self._ratio.learn(num_characters, num_tokens)
        return Pooled(
            results=[result for part in done for result, _ in part],
            num_tokens=num_tokens,
        )

    def check_deadline(
        self, num_tokens: int, limits: StreamLimits, client: Client
    ) -> None:
        """Refuse a request that other requests would make late.

        Args:
          num_tokens: tokens of its texts, about.

        Raises:
          DeadlineUnreachable
        """
        if limits.needs_forecast:
            self._check_time(limits, self.engine.forecast(num_tokens, client))

    async def score(
        self,
        queries: Sequence[str] | str,
        documents: Sequence[str],
        options: ScoreOptions | None = None,
        *,
        priority: int = 0,
        client: Client = Client(),
        limits: StreamLimits = StreamLimits(),
        on_submit: Callable[[], None] = lambda: None,
    ) -> Scores:
        """Score how well documents answer queries: one query for all, or one for each.

        A cross-encoder reads each query together with its document. The score of an
        embedding model is the cosine of two vectors; of a late interaction model, MaxSim of
        the tokens' vectors. Queries stay on the device until the request ends, and only
        scores leave it.

        Raises:
          InvalidParameter: there are no queries or no documents, or several queries and
            not one for each document.
          TaskNotServed: the model cannot score.
          DeadlineUnreachable: other requests would make it late.
        """
        resolved = options or ScoreOptions(text=self._make_options("classify"))
        if isinstance(queries, str):
            queries = [queries]
        self._check_pairs(queries, documents, resolved)
        num_characters = count_text(queries) + count_text(documents)
        num_tokens = self._ratio.estimate(num_characters)
        self.check_deadline(num_tokens, limits, client)
        scoring = Scoring(
            engine=self.engine,
            renderer=self.renderer,
            queries=queries,
            documents=documents,
            options=resolved,
            num_tokens=num_tokens,
            priority=priority,
            client=client,
            on_submit=on_submit,
        )
        if self.pooling.task == "classify":
            return await scoring.score_pairs()
        return await scoring.compare()

    def _check_pairs(
        self, queries: Sequence[str], documents: Sequence[str], options: ScoreOptions
    ) -> None:
        if self.pooling.task == "token_classify" or (
            self.pooling.task == "classify" and self.pooling.num_outputs != 1
        ):
            raise TaskNotServed(
                self.info.name, wanted="score pairs", served=self.pooling.task
            )
        for texts, param in (
            (queries, options.query_param),
            (documents, options.document_param),
        ):
            if not texts:
                raise InvalidParameter(param, "must not be empty")
        if len(queries) not in (1, len(documents)):
            raise InvalidParameter(
                options.document_param,
                f"{len(queries)} queries and {len(documents)} documents do not match: "
                "send one query, or one for each document",
            )

    async def _pool_arrays(
        self,
        task: PoolingTask,
        texts: Sequence[str],
        *,
        dimensions: int | None = None,
        options: TextOptions,
    ) -> list[NDArray[np.float32]]:
        params = PoolingParams(task=task, dimensions=dimensions)
        pooled = await self.pool(texts, params, options, finish=_read_array)
        return pooled.results

    def _make_options(
        self,
        task: PoolingTask,
        kind: str | None = None,
        prompt_name: str | None = None,
        long_text: LongText | None = None,
    ) -> TextOptions:
        options = TextOptions(
            prompt_name=prompt_name,
            long_text=long_text or self.choose_long_text(can_average=task == "embed"),
        )
        return options if kind is None else as_kind(options, kind)

    def _read_classification(self, index: int, tensor: TensorBytes) -> Classification:
        from ..render.pooling.vectors import read_floats

        probs = tuple(read_floats(tensor))
        return Classification(label=self.name_label(probs), probs=probs)

    def name_label(self, probs: Sequence[float]) -> str:
        """Return the name of the most likely label."""
        return self.pooling.labels[max(range(len(probs)), key=probs.__getitem__)]

    async def _run_finishing(
        self, work: Callable[[], T], tensors: Sequence[TensorBytes]
    ) -> T:
        if sum(math.prod(tensor.shape) for tensor in tensors) <= _FEW_NUMBERS:
            return work()
        return await self.renderer.workers.run(work)


def _finish(
    numbers: range,
    rendered: Sequence[tuple[PoolingInput, ...]],
    tensors: Sequence[TensorBytes],
    finish: Callable[[int, TensorBytes], T],
) -> list[tuple[T, int]]:
    """Average the chunks of each text and convert its tensor. Blocking."""
    from ..render.pooling.vectors import average

    done = []
    rest = iter(tensors)
    for number, chunks in zip(numbers, rendered):
        parts = [next(rest) for _ in chunks]
        weights = [chunk.num_tokens for chunk in chunks]
        tensor = average(parts, weights) if len(parts) > 1 else parts[0]
        done.append((finish(number, tensor), sum(weights)))
    return done


def _read_array(index: int, tensor: TensorBytes) -> NDArray[np.float32]:
    import numpy as np

    # Copied, because an array over bytes is read-only.
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape).copy()
