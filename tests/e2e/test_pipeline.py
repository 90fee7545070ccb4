"""A model spread over processes: its answers, and the death of each process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
import random
import signal
import threading
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest
from server_process import list_own, open_stream
import trio

import trioserve
from trioserve.config import EngineConfig, build_config
from trioserve.errors import EngineDied, InvalidConfig, InvalidParameter
from trioserve.executor.pipeline.executor import StageDied
from trioserve.frontend import TextEngine, TextParams
from trioserve.grammar.compile import compile_structure
from trioserve.startup.source import ModelKind, find_source
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import ReasoningBudget, SamplingParams
from trioserve.types.structured import Grammar, StructuredOutput

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("with_transformers")]

T = TypeVar("T")

# After a kill, the system unmaps gigabytes of libraries, and the machine may be busy.
LATE = 20.0

# A stage that is silent for 5 seconds counts as lost at the next check.
SILENCE = 7.0

# It ends soon, with tokens that the model itself would not choose.
THINKING = ReasoningBudget(
    num_tokens=5, start_token_ids=(7,), end_token_ids=(8, 9), is_open=True
)

# A grammar of 10 to 20 letters.
LETTERS = compile_structure(StructuredOutput(kind="regex", value="[a-f]{10,20}"))

NUM_LAYERS = 3
BLOCK_SIZE = 4
# Few enough that sequences are preempted.
NUM_BLOCKS = 48
# Keys and values of a token in one layer.
LAYER_BYTES = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a layer for each of three stages."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    save_tiny_model(
        "llama",
        folder,
        num_hidden_layers=NUM_LAYERS,
        vocab_size=512,
        # The KV cache holds one sequence of this length; a smaller cache is refused.
        max_position_embeddings=NUM_BLOCKS * BLOCK_SIZE,
        bos_token_id=0,
        eos_token_id=1,
    )
    return tiny_tokenizer(folder)


# ---- answers -------------------------------------------------------------------------


class Layout(NamedTuple):
    """The split of a model over processes."""

    num_stages: int
    num_shards: int = 1


ONE = Layout(1)
LAYOUTS = [Layout(3), Layout(2, num_shards=2)]


@dataclass(kw_only=True)
class Running:
    """An engine that has been opened.

    Args:
      fresh: its statistics before the first request.
      stages: the processes of its stages.
      end: the cause of its end; None while it runs.
    """

    engine: TextEngine
    fresh: Any
    stages: list[psutil.Process]
    has_ended: trio.Event
    end: BaseException | None = None


class Host:
    """An event loop in a thread, with engines that several tests share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines: dict[Layout, Running] = {}
        self._nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken

    async def main(self, started: SimpleQueue[None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            started.put(None)
            await trio.sleep_forever()

    def run(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine to its end, for three minutes at most."""

        async def bounded() -> T:
            with trio.fail_after(180):
                return await work(*args)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def stop(self) -> None:
        trio.from_thread.run_sync(
            self._nursery.cancel_scope.cancel, trio_token=self._token
        )

    async def open(self, layout: Layout) -> Running:
        """Open an engine, or return the one that runs already."""
        running = self._engines.get(layout)
        if running is None or running.has_ended.is_set():
            running = await self._nursery.start(self._keep, layout)
            self._engines[layout] = running
        return running

    async def _keep(
        self, layout: Layout, *, task_status: trio.TaskStatus[Running]
    ) -> None:
        before = psutil.Process().children()
        running: Running | None = None
        try:
            async with trioserve.open_engine(
                str(self._folder), **self._choose(layout)
            ) as engine:
                running = Running(
                    engine=engine,
                    fresh=engine.engine.statistics(),
                    stages=[p for p in psutil.Process().children() if p not in before],
                    has_ended=trio.Event(),
                )
                task_status.started(running)
                await trio.sleep_forever()
        except EngineDied as error:
            assert running is not None, "it was open when it died"
            running.end = error.__cause__
            running.has_ended.set()

    @staticmethod
    def _choose(layout: Layout) -> dict[str, object]:
        """Return options that give the KV cache the same number of blocks."""
        most_layers = -(-NUM_LAYERS // layout.num_stages)
        layer_bytes = LAYER_BYTES // layout.num_shards
        size = most_layers * layer_bytes * BLOCK_SIZE * NUM_BLOCKS
        return {
            "dtype": "float32",
            "pipeline_parallel_size": layout.num_stages,
            "tensor_parallel_size": layout.num_shards,
            "kv_cache_memory": str(size),
            "block_size": BLOCK_SIZE,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 16,
            "num_threads": 1,
            "logits_processor": ("my_processors:NoRepeat",),
        }


@pytest.fixture(scope="module")
def host(folder: Path, plugin_folder: Path) -> Iterator[Host]:
    # Servers that other tests share are children, too.
    before = set(psutil.Process().children())
    host = Host(folder)
    started: SimpleQueue[None] = SimpleQueue()
    thread = threading.Thread(target=trio.run, args=(host.main, started))
    thread.start()
    started.get(timeout=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(plugin_folder)
        yield host
    host.stop()
    thread.join(30)
    assert set(psutil.Process().children()) == before


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    sampling: SamplingParams


def make_prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(number).choices(range(3, 500), k=length))


def make_requests() -> list[Request]:
    """Make prompts of one step and of several, with all kinds of sampling."""
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    # With this seed, no random number is so close to the border of two tokens that
    # rounding decides, which depends on the batch, and on the order of the sums of shards.
    seeded = replace(greedy, temperature=0.9, seed=22)
    samplings = [
        greedy,
        seeded,
        replace(seeded, top_p=0.9, top_k=20, min_p=0.01, seed=-5),
        replace(greedy, repetition_penalty=1.6),
        replace(seeded, presence_penalty=1.2, frequency_penalty=0.8),
        replace(greedy, logprobs=3, prompt_logprobs=2),
        replace(seeded, n=3, logprobs=0),
        replace(seeded, logit_bias=((9, 4.0),), bad_words=((5,), (6, 7))),
        replace(seeded, stop_token_ids=tuple(range(3, 60)), min_tokens=5),
        replace(greedy, max_tokens=1),
        replace(seeded, logits_processors=(("no-repeat", {"size": 1}),)),
        replace(greedy, reasoning_budget=THINKING),
        replace(seeded, n=2, ignore_eos=False, grammar=Grammar(text=LETTERS)),
    ]
    return [
        Request(make_prompt(number, length), sampling)
        for number, (length, sampling) in enumerate(
            ((3, 50)[place % 2], sampling) for place, sampling in enumerate(samplings)
        )
    ]


async def answer(engine: TextEngine, request: Request) -> list[TextDelta]:
    """Return each sequence as one delta."""
    prompts = [Prompt(token_ids=request.prompt)]
    async with engine.open_text(prompts, request.sampling, TextParams()) as texts:
        return await texts.collect()


async def answer_all(
    engine: TextEngine, requests: Sequence[Request]
) -> list[list[TextDelta]]:
    """Answer all requests at the same time."""
    answers: list[list[TextDelta]] = [[] for _ in requests]

    async def work(number: int, request: Request) -> None:
        answers[number] = await answer(engine, request)

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(work, number, request)
    return answers


async def wait_fresh(running: Running) -> None:
    while running.engine.engine.statistics() != running.fresh:
        await trio.sleep(0.01)


def assert_alike(ours: Sequence[TextDelta], theirs: Sequence[TextDelta]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        for name in ("logprobs", "prompt_logprobs"):
            assert_same_numbers(getattr(one, name), getattr(other, name))


def assert_same_numbers(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    assert [each.token_id for each in ours] == [each.token_id for each in theirs]
    numbers = [[each.logprob, *(p for _, p in each.top)] for each in ours]
    others = [[each.logprob, *(p for _, p in each.top)] for each in theirs]
    for one, other in zip(numbers, others):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_processes_write_the_same_as_one(host: Host, layout: Layout) -> None:
    """All requests run at once, in chunks, with preemptions. Nothing is left behind."""

    async def check() -> None:
        one = await host.open(ONE)
        pipeline = await host.open(layout)
        assert len(pipeline.stages) == layout.num_stages * layout.num_shards
        assert pipeline.fresh == one.fresh
        requests = make_requests()
        expected = await answer_all(one.engine, requests)
        answers = await answer_all(pipeline.engine, requests)
        for ours, theirs in zip(answers, expected):
            assert_alike(ours, theirs)
        assert len({each.token_ids for each in expected[6]}) == 3
        assert pipeline.engine.engine.counters().num_preemptions > 0
        await wait_fresh(pipeline)

    host.run(check)


def test_a_prompt_shares_the_keys_of_its_common_beginning_with_another(
    host: Host,
) -> None:
    async def check() -> None:
        one = await host.open(ONE)
        pipeline = await host.open(LAYOUTS[1])
        sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        first = Request(make_prompt(77, 60), sampling)
        second = Request((*first.prompt[:50], 8, 9), sampling)
        for request, num_cached in ((first, 0), (second, 48)):
            [ours] = await answer(pipeline.engine, request)
            assert ours.num_cached_tokens == num_cached
            assert_alike([ours], await answer(one.engine, request))

    host.run(check)


def test_requests_that_leave_during_steps_leave_nothing_behind(host: Host) -> None:
    async def leave(engine: TextEngine, number: int) -> None:
        sampling = SamplingParams(seed=number, max_tokens=60, ignore_eos=True)
        prompts = [Prompt(token_ids=make_prompt(number, 1 + number % 50))]
        num_deltas = 0
        async with engine.engine.open_stream(prompts, sampling) as deltas:
            # Every fifth reader leaves before its first token.
            if number % 5:
                async for _ in deltas:
                    num_deltas += 1
                    if num_deltas > number % 7:
                        break

    async def check() -> None:
        one = await host.open(ONE)
        pipeline = await host.open(LAYOUTS[0])
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(leave, pipeline.engine, number)
        await wait_fresh(pipeline)
        request = make_requests()[0]
        assert_alike(
            await answer(pipeline.engine, request), await answer(one.engine, request)
        )

    host.run(check)


def test_a_pipeline_sleeps_without_processes_and_answers_as_before(host: Host) -> None:
    async def check() -> None:
        pipeline = await host.open(LAYOUTS[1])
        sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        request = Request(make_prompt(78, 60), sampling)
        expected = await answer(pipeline.engine, request)
        with pytest.raises(InvalidParameter, match="use level=2"):
            await pipeline.engine.sleep(1)
        before = {*psutil.Process().children()} - {*pipeline.stages}
        await pipeline.engine.sleep(2, ends_requests=False)
        assert pipeline.engine.is_asleep
        assert not any(stage.is_running() for stage in pipeline.stages)
        await pipeline.engine.wake()
        pipeline.stages = [p for p in psutil.Process().children() if p not in before]
        assert len(pipeline.stages) == 4
        for num_cached in (0, 56):
            [ours] = await answer(pipeline.engine, request)
            assert ours.num_cached_tokens == num_cached
            assert_alike([ours], expected)
        await wait_fresh(pipeline)

    host.run(check)


# ---- deaths --------------------------------------------------------------------------


async def wait_failed(engine: TextEngine, has_failed: trio.Event) -> None:
    request = Request((3,), SamplingParams(max_tokens=150, ignore_eos=True, n=8))
    try:
        await answer(engine, request)
    except EngineDied:
        has_failed.set()


@pytest.mark.usefixtures("no_shared_memory_left")
@pytest.mark.parametrize(
    ("layout", "signum", "end"),
    [
        (Layout(3), signal.SIGSTOP, "stage 1 has been silent for 5 s"),
        (
            *(Layout(2, 2), signal.SIGKILL),
            "stage 0 shard 1 was ended by SIGKILL, as the system does when memory runs out",
        ),
    ],
)
def test_a_stage_that_dies_or_hangs_ends_its_engine(
    host: Host, layout: Layout, signum: signal.Signals, end: str
) -> None:
    """Every open request gets an error, and the other stages end, too."""

    async def check() -> None:
        pipeline = await host.open(layout)
        began = pipeline.engine.engine.counters().num_steps
        has_failed = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_failed, pipeline.engine, has_failed)
            while pipeline.engine.engine.counters().num_steps < began + 10:
                await trio.lowlevel.checkpoint()
            pipeline.stages[1].send_signal(signum)
            with trio.fail_after(SILENCE + LATE):
                await pipeline.has_ended.wait()
        assert has_failed.is_set()
        assert isinstance(pipeline.end, StageDied)
        assert str(pipeline.end) == end
        assert not any(stage.is_running() for stage in pipeline.stages)

    host.run(check)


def open_pipeline(folder: Path, **options: object) -> Any:
    return trioserve.open_engine(
        str(folder), pipeline_parallel_size=2, kv_cache_memory="16MiB", **options
    )


@pytest.fixture
def list_children() -> Iterator[Callable[[], list[psutil.Process]]]:
    """Return a function that lists the processes that the test has started."""
    # Engines that tests share have processes, too.
    before = psutil.Process().children()

    def list_new() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if each not in before]

    yield list_new
    assert not list_new()


Children = Callable[[], list[psutil.Process]]


async def wait_stages(list_children: Children) -> list[psutil.Process]:
    while len(stages := list_children()) < 2:
        await trio.sleep(0.01)
    return stages


async def test_a_stage_that_is_killed_during_its_load_is_reported(
    folder: Path, list_children: Children
) -> None:
    async def kill() -> None:
        (await wait_stages(list_children))[1].kill()

    with trio.fail_after(180):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(StageDied, match="stage 1 was ended by SIGKILL"):
                async with open_pipeline(folder):
                    raise AssertionError("it cannot be loaded")


async def test_a_cancelled_load_leaves_no_stage(
    folder: Path, list_children: Children
) -> None:
    async def give_up(scope: trio.CancelScope) -> None:
        await wait_stages(list_children)
        scope.cancel()

    with trio.fail_after(180):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up, nursery.cancel_scope)
            async with open_pipeline(folder):
                raise AssertionError("it cannot be loaded so soon")
    assert nursery.cancel_scope.cancelled_caught


@pytest.mark.usefixtures("no_shared_memory_left")
def test_a_killed_server_leaves_neither_engine_nor_stages(
    start_server: Callable[..., Any], folder: Path
) -> None:
    """Each process ends with its parent, and so do the stages of a killed engine."""
    server = start_server(
        *(str(folder), "--pipeline-parallel-size", "2"),
        *("--kv-cache-memory", "16MiB", "--num-threads", "1"),
    )
    [engine] = list_own(server.process.pid)
    stages = list_own(engine.pid)
    assert len(stages) == 2
    with open_stream(server.url):
        server.process.kill()
        _, left = psutil.wait_procs([engine, *stages], LATE)
        assert not left


# ---- refusals ------------------------------------------------------------------------


@pytest.mark.parametrize("model_kind", ["generate", "pooling", "all"])
def test_a_model_that_pools_is_refused(tmp_path: Path, model_kind: ModelKind) -> None:
    """The stages refuse it, for every kind of model that the engine expects."""
    save_tiny_encoder("bert", tmp_path)
    config = build_config(
        EngineConfig, {"model": str(tmp_path), "pipeline_parallel_size": 2}
    )
    with pytest.raises(InvalidConfig, match="--pipeline-parallel-size: .*one process"):
        find_source(config, model_kind)


async def test_a_pipeline_does_not_pool(folder: Path, list_children: Children) -> None:
    with pytest.raises(InvalidConfig, match="pipeline_parallel_size: .*one process"):
        async with trioserve.open_pooling_engine(str(folder), pipeline_parallel_size=2):
            raise AssertionError("it is refused")
