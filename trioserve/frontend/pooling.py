"""What programs and HTTP handlers ask: vectors, labels, scores.

A request is cut into jobs of a few texts; each is tokenized, read and written on its own,
so that the device reads the first texts while the later ones are tokenized, and no thread
is held for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from ..engine import TensorEngine
from ..errors import InvalidParameter, TaskNotServed
from ..render import PoolingRenderer, TextInput, TextOptions, count_text, run_together
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
from .served import ServedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# NumPy is imported where it is needed: it takes a tenth of a second, which --help need
# not wait.

T = TypeVar("T")

# Written or read on the loop where there are no more numbers in them: 50 us, which is
# what a thread would cost.
_FEW_NUMBERS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled(Generic[T]):
    """What texts gave, in their order, and how many tokens were read for it."""

    results: list[T]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a classifier says of a text.

    Args:
      label: the likeliest.
      probs: of each label, in the order of PoolingInfo.labels.
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
        """Return what is done with long texts of which nothing is said.

        Args:
          can_average: they become one vector. Others are refused where chunks would be
            made of these.
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
          dimensions: of a Matryoshka model's vectors the first so many numbers.
          kind: "query" or "document", for models that tell them apart.
          prompt_name: of the model's prompts the one that is put before each text.
          long_text: "refuse", "truncate" or "chunk", by default as the option says.

        Returns:
          (len(texts), dimensions) float32

        Raises:
          TrioserveError: see errors.py.
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
          TrioserveError: see errors.py.
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
        param: str = "input",
        on_submit: Callable[[], None] = lambda: None,
    ) -> Pooled[T]:
        """Read texts and make something of what each gives.

        They are one request: the first that fails ends the others.

        Args:
          finish: called with a text's number and what it gave, in a renderer worker or,
            where there is little of it, in the event loop.
          priority: the lower goes first; equals take turns.
          param: the request's field, for errors.
          on_submit: is called when the device can begin with some of them.

        Raises: what PoolingRenderer.render_texts and TensorEngine.open_request raise, and
          RendererFull: other requests bring too much text.
        """
        jobs = PoolingJobs(self.renderer, options or self._make_options(params.task))
        with (
            self.engine.open_request(
                len(texts), params, priority=priority, param=param, on_submit=on_submit
            ) as request,
            self.renderer.room.enter(count_text(texts)),
        ):

            async def run(numbers: range) -> list[tuple[T, int]]:
                rendered = await jobs.render_texts(texts, numbers, param)
                tensors = await request.pool([each for one in rendered for each in one])
                work = partial(_finish, numbers, rendered, tensors, finish)
                return await self._run_finishing(work, tensors)

            batches = self.renderer.cut_batches(texts)
            done = await run_together([partial(run, batch) for batch in batches])
        return Pooled(
            results=[result for part in done for result, _ in part],
            num_tokens=sum(num_tokens for part in done for _, num_tokens in part),
        )

    async def score(
        self,
        queries: Sequence[str] | str,
        documents: Sequence[str],
        options: ScoreOptions | None = None,
        *,
        priority: int = 0,
        on_submit: Callable[[], None] = lambda: None,
    ) -> Scores:
        """Tell how well documents answer queries: one to all, or one to each.

        The model decides how: a cross-encoder reads each pair at once, an embedding
        model's score is the cosine of the vectors, a late interaction model's MaxSim of
        the tokens' vectors. Queries stay on the device for as long as the request lasts,
        and scores are all that leaves it.

        Raises:
          InvalidParameter: there are more queries than one, and not one for each
            document; or none at all.
          TaskNotServed: the model has no way of scoring.
        """
        resolved = options or ScoreOptions(text=self._make_options("classify"))
        if isinstance(queries, str):
            queries = [queries]
        self._check_pairs(queries, documents, resolved)
        scoring = Scoring(
            engine=self.engine,
            renderer=self.renderer,
            queries=queries,
            documents=documents,
            options=resolved,
            priority=priority,
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
        """Return the name of the likeliest label."""
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
    """Put chunks together and make of each text's tensor what is wanted; blocking."""
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

    # Copied, because bytes cannot be written to.
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape).copy()
