"""Renderer and loop together: order, failures, cancellation, scores, chunks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
import random
from typing import Any

import numpy as np
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.errors import ContextLengthExceeded, InvalidParameter, TaskNotServed
from trioserve.frontend import PoolingEngine, ScoreOptions
from trioserve.render import TextOptions
from trioserve.render.pooling.vectors import read_floats
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import (
    FakeExecutor,
    FakePoolingDevice,
    fake_vector,
    make_info,
    make_pooling_info,
)
from trioserve.testing.renderers import load_pooling_renderer
from trioserve.types.pooling import LongText, PoolingParams, PoolingTask
from trioserve.types.tensors import TensorBytes

MAX_MODEL_LEN = 32
EMBED = PoolingParams(task="embed")


class Bench:
    """A complete pooling engine over a fake device, to be run in a nursery."""

    def __init__(
        self,
        folder: Path,
        task: PoolingTask = "embed",
        *,
        num_outputs: int = 8,
        labels: tuple[str, ...] = (),
        step_seconds: float = 0.001,
        long_texts: LongText = "refuse",
    ) -> None:
        info = make_info(MAX_MODEL_LEN)
        pooling = make_pooling_info(task, num_outputs=num_outputs, labels=labels)
        self.device = FakePoolingDevice(num_outputs)
        core = LocalPoolingCore(
            PoolingScheduler(max_num_seqs=8, max_num_batched_tokens=64),
            FakeExecutor(self.device.step, step_seconds=step_seconds),
        )
        self.loop = TensorEngine(
            core,
            info=info,
            pooling=pooling,
            max_num_inputs=1000,
        )
        renderer = load_pooling_renderer(
            folder, RenderConfig(), info=info, pooling=pooling, sentence=None
        )
        self.engine = PoolingEngine(self.loop, renderer, long_texts=long_texts)
        self.fresh = self.loop.statistics()

    async def tokenize(self, text: str) -> tuple[int, ...]:
        return (await self.engine.renderer.render_text(text)).token_ids

    async def wait_nothing_is_held(self) -> None:
        with trio.fail_after(20):
            while self.loop.statistics() != self.fresh or self.device.kept:
                await trio.sleep(0.001)


StartBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
def start_bench(tokenizer_folder: Path, nursery: trio.Nursery) -> StartBench:
    """Return a function that makes a bench whose loop runs."""

    async def start(*args: Any, **options: Any) -> Bench:
        bench = Bench(tokenizer_folder, *args, **options)
        await nursery.start(bench.loop.run)
        return bench

    return start


def write_texts(count: int, *, most: int = 8) -> list[str]:
    words = "the quick brown fox jumps over lazy dog and rain in town".split()
    draw = random.Random(0)
    return [
        f"{index} {' '.join(draw.choices(words, k=draw.randint(1, most)))}"
        for index in range(count)
    ]


def take_floats(index: int, tensor: TensorBytes) -> tuple[int, list[float]]:
    return index, read_floats(tensor)


async def test_results_are_in_order_over_many_jobs(start_bench: StartBench) -> None:
    bench = await start_bench()
    texts = write_texts(200)
    pooled = await bench.engine.pool(texts, EMBED, finish=take_floats)
    assert [index for index, _ in pooled.results] == list(range(200))
    num_tokens = 0
    for text, (_, vector) in zip(texts, pooled.results):
        ids = await bench.tokenize(text)
        num_tokens += len(ids)
        assert vector == pytest.approx(fake_vector(ids, 8), abs=1e-6)
    assert pooled.num_tokens == num_tokens
    await bench.wait_nothing_is_held()


async def test_one_wrong_text_ends_its_request_at_once(start_bench: StartBench) -> None:
    """The other texts are cancelled, and the error names the wrong text."""
    bench = await start_bench(step_seconds=0.01)
    texts = write_texts(400)
    texts[100] = "far too long " * 100
    with pytest.raises(ContextLengthExceeded) as caught:
        await bench.engine.pool(texts, EMBED, finish=take_floats)
    assert caught.value.param == "input[100]"
    await bench.wait_nothing_is_held()
    assert bench.loop.counters().num_inputs < 400


async def test_a_wrong_request_costs_another_nothing(start_bench: StartBench) -> None:
    bench = await start_bench()
    right: list[int] = []

    async def ask_correctly() -> None:
        pooled = await bench.engine.pool(write_texts(50), EMBED, finish=take_floats)
        right.append(len(pooled.results))

    async with trio.open_nursery() as clients:
        clients.start_soon(ask_correctly)
        with pytest.raises(InvalidParameter):
            await bench.engine.pool(["", *write_texts(50)], EMBED, finish=take_floats)
    assert right == [50]


@pytest.mark.parametrize("num_keys", [0, 1])
async def test_leaving_between_query_and_documents_leaves_nothing_on_the_device(
    start_bench: StartBench, num_keys: int
) -> None:
    """A client leaves while it waits for its query, or once the query is kept."""
    bench = await start_bench("token_embed")
    documents = write_texts(500)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as clients:
            clients.start_soon(bench.engine.score, "a question", documents)
            while len(bench.device.kept) < num_keys:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert bench.loop.counters().num_inputs < 500
    await bench.wait_nothing_is_held()
    # The device really keeps nothing.
    assert bench.device.kept == {}


@pytest.mark.parametrize("task", ["embed", "token_embed"])
async def test_a_query_is_compared_with_every_document(
    start_bench: StartBench, task: PoolingTask
) -> None:
    bench = await start_bench(task)
    texts = write_texts(40)
    scores = await bench.engine.score(texts[7], texts)
    best = max(range(40), key=scores.values.__getitem__)
    assert best == 7
    ids = [await bench.tokenize(text) for text in texts]
    assert scores.num_tokens == sum(map(len, ids)) + len(ids[7])
    if task == "embed":
        query, *documents = [fake_vector(each, 8) for each in [ids[7], *ids]]
        assert scores.values == pytest.approx(
            [float(np.dot(query, each)) for each in documents], abs=1e-6
        )
    await bench.wait_nothing_is_held()


async def test_as_many_queries_as_documents_are_pairs(start_bench: StartBench) -> None:
    bench = await start_bench()
    texts = write_texts(70)
    scores = await bench.engine.score(texts, texts)
    assert scores.values == pytest.approx([1.0] * 70)
    one = await bench.engine.score(texts[:1], texts[:1])
    assert one.values == pytest.approx([1.0])


async def test_a_cross_encoder_reads_each_pair_at_once(start_bench: StartBench) -> None:
    bench = await start_bench("classify", num_outputs=1, labels=("relevance",))
    scores = await bench.engine.score("a question", ["one", "two", "three"])
    assert len(scores.values) == 3
    assert sum(len(plan.rows) for plan in bench.device.plans) == 3
    assert len(set(scores.values)) <= 3
    await bench.wait_nothing_is_held()


@pytest.mark.parametrize(
    ("task", "num_outputs"), [("classify", 3), ("token_classify", 1)]
)
async def test_a_model_that_has_no_score_says_so(
    start_bench: StartBench, task: PoolingTask, num_outputs: int
) -> None:
    bench = await start_bench(task, num_outputs=num_outputs)
    with pytest.raises(TaskNotServed, match="does not score pairs"):
        await bench.engine.score("a", ["b"])


async def test_chunks_of_a_long_text_are_averaged(start_bench: StartBench) -> None:
    bench = await start_bench()
    text = "the quick brown fox jumps over the lazy dog " * 5
    options = TextOptions(long_text="chunk")
    chunks = await bench.engine.renderer.render_texts([text], options, str)
    sizes = [chunk.num_tokens for chunk in chunks[0]]
    assert len(sizes) > 1
    vectors = [fake_vector(chunk.token_ids, 8) for chunk in chunks[0]]
    mean = np.average(vectors, axis=0, weights=sizes)
    pooled = await bench.engine.pool(
        ["short", text, "short"], EMBED, options, finish=take_floats
    )
    assert pooled.results[1][1] == pytest.approx(
        list(mean / np.linalg.norm(mean)), abs=1e-5
    )
    assert pooled.results[0][1] == pooled.results[2][1]


async def test_long_texts_are_chunked_by_default_only_for_vectors(
    start_bench: StartBench,
) -> None:
    bench = await start_bench(long_texts="chunk")
    long = "too long " * 50
    assert (await bench.engine.embed([long])).shape == (1, 8)
    with pytest.raises(ContextLengthExceeded):
        await bench.engine.embed_tokens([long])
    with pytest.raises(ContextLengthExceeded):
        await bench.engine.score("a question", [long])


async def test_programs_get_arrays(start_bench: StartBench) -> None:
    bench = await start_bench()
    texts = write_texts(3)
    vectors = await bench.engine.embed(texts)
    assert vectors.shape == (3, 8)
    assert vectors.dtype == np.float32
    matrices = await bench.engine.embed_tokens(texts)
    assert [len(matrix) for matrix in matrices] == [
        len(await bench.tokenize(text)) for text in texts
    ]
    assert (await bench.engine.embed([])).shape == (0, 8)
    with pytest.raises(ContextLengthExceeded):
        await bench.engine.embed(["too long " * 50])
    long = await bench.engine.embed(["too long " * 50], long_text="truncate")
    assert long.shape == (1, 8)


async def test_programs_get_labels(start_bench: StartBench) -> None:
    bench = await start_bench("classify", num_outputs=3, labels=("a", "b", "c"))
    for answer in await bench.engine.classify(write_texts(3)):
        assert len(answer.probs) == 3
        assert answer.label == "abc"[int(np.argmax(answer.probs))]


async def test_a_short_request_does_not_queue_behind_all_jobs_of_a_long_one(
    start_bench: StartBench,
) -> None:
    """A request has one job at a time with each renderer worker."""
    bench = await start_bench()
    most = 0
    async with trio.open_nursery() as clients:
        clients.start_soon(bench.engine.embed, write_texts(400))
        while bench.loop.counters().num_inputs < 250:
            statistics = bench.engine.renderer.workers.statistics()
            most = max(most, statistics.waiting)
            await trio.lowlevel.checkpoint()
    assert most <= 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda engine: engine.score([], ["a"]), "queries: must not be empty"),
        (lambda engine: engine.score(["a"], []), "documents: must not be empty"),
        (
            lambda engine: engine.score(["a", "b"], ["a"]),
            "documents: 2 queries and 1 documents do not match: send one query, or one "
            "for each document",
        ),
        (
            lambda engine: engine.score(["a", "b"], ["a", "b", "c"]),
            "documents: 2 queries and 3 documents do not match",
        ),
        (
            lambda engine: engine.score("a", write_texts(1000)),
            "documents: at most 1000 texts are possible, got 1001",
        ),
        (
            lambda engine: engine.embed(["a"], kind="poem"),
            "kind: must be query or document",
        ),
        (
            lambda engine: engine.embed(["a"], dimensions=4),
            "dimensions: Model 'fake' does not support Matryoshka",
        ),
        (lambda engine: engine.embed(["a"], prompt_name="poem"), "prompt_name: "),
        (
            lambda engine: engine.embed_tokens(["a"], prompt_name="poem"),
            "prompt_name: ",
        ),
    ],
)
async def test_a_request_is_refused_by_its_field(
    start_bench: StartBench,
    ask: Callable[[PoolingEngine], Awaitable[object]],
    message: str,
) -> None:
    bench = await start_bench()
    with pytest.raises(InvalidParameter, match=f"^{message}"):
        await ask(bench.engine)


async def test_texts_are_compared_by_vectors_of_length_1(
    start_bench: StartBench,
) -> None:
    """This does not depend on the model's default."""
    bench = await start_bench()
    await bench.engine.score("a question", ["a document"])
    params = {row.params for plan in bench.device.plans for row in plan.rows}
    assert params == {PoolingParams(task="embed", use_activation=True)}


async def test_tokens_of_all_queries_count(start_bench: StartBench) -> None:
    """This holds even for so many queries that several jobs read them."""
    bench = await start_bench()
    texts = write_texts(200)
    assert len(bench.engine.renderer.cut_batches(texts)) > 1
    scores = await bench.engine.score(texts, texts)
    num_tokens = sum([len(await bench.tokenize(text)) for text in texts])
    assert scores.num_tokens == 2 * num_tokens


async def test_a_pair_that_is_too_long_is_named_wherever_it_stands(
    start_bench: StartBench,
) -> None:
    bench = await start_bench("classify", num_outputs=1, labels=("relevance",))
    documents = write_texts(200)
    documents[150] = "far too long " * 100
    with pytest.raises(ContextLengthExceeded) as caught:
        await bench.engine.score("a question", documents)
    assert caught.value.param == "documents[150]"


async def test_vectors_of_many_numbers_are_read_in_a_worker(
    start_bench: StartBench,
) -> None:
    bench = await start_bench(num_outputs=4096)
    [vector] = await bench.engine.embed(["a text"])
    expected = fake_vector(await bench.tokenize("a text"), 4096)
    assert list(vector) == pytest.approx(expected, abs=1e-6)


async def test_a_cross_encoder_may_give_scores_as_the_model_computes_them(
    start_bench: StartBench,
) -> None:
    bench = await start_bench("classify", num_outputs=1, labels=("relevance",))
    await bench.engine.score("a", ["b"], ScoreOptions(use_activation=False))
    [row] = bench.device.plans[-1].rows
    assert row.params == PoolingParams(task="classify", use_activation=False)


async def test_a_request_reports_when_the_device_can_begin(
    start_bench: StartBench,
) -> None:
    bench = await start_bench()
    num_plans: list[int] = []

    def count_plans() -> None:
        num_plans.append(len(bench.device.plans))

    await bench.engine.pool(["a"], EMBED, finish=take_floats, on_submit=count_plans)
    assert num_plans[0] == 0
