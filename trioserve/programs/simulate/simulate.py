"""Run a load through the scheduler, the engine loop and simulated stages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
import itertools
import math
from pathlib import Path
from typing import Any

import trio
import trio.testing

from ...engine.generation.core import LocalCore
from ...engine.generation.engine import TokenEngine
from ...engine.generation.token_stream import TokenStream
from ...scheduler.generation.scheduler import Scheduler
from ...types.model_info import ModelInfo
from ...types.output import StepResult
from ...types.plan import StepPlan
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams
from .config import SimulateConfig
from .load import SimulatedRequest, list_requests
from .pipeline import EveryStepTransfers, PipelineSimulator, PipelineTimes
from .report import Report, RequestRecord, make_report
from .timeline import check_matplotlib, draw_timeline

# Every message is checked when it comes, but the wait for a message that never comes
# would have no end. No simulation takes so many seconds: thirty years.
_NEVER_SECONDS = 1e9


def simulate(config: SimulateConfig) -> tuple[Report, PipelineSimulator]:
    """Play a whole load; the same configuration always gives the same figures.

    Raises:
      InvalidConfig: the load is wrong.
    """
    requests = list_requests(config)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_simulate, config, requests, clock=clock)


def report_simulation(config: SimulateConfig) -> str:
    """Play a load, write the files that the options name, and return the table.

    Raises:
      InvalidConfig: the load is wrong, or a file cannot be written.
      MissingExtra: there is no matplotlib for --timeline.
    """
    # First, because the simulation may take minutes.
    if config.timeline is not None:
        check_matplotlib()
    report, pipeline = simulate(config)
    if config.json is not None:
        report.write(Path(config.json))
    if config.timeline is not None:
        draw_timeline(
            pipeline.record,
            Path(config.timeline),
            num_stages=config.pipeline_parallel_size,
            title=_describe(config, report),
            window=config.timeline_window or report.window,
        )
    return report.format()


def _describe(config: SimulateConfig, report: Report) -> str:
    stages = "stage" if config.pipeline_parallel_size == 1 else "stages"
    return (
        f"{config.pipeline_parallel_size} {stages}, {report.num_requests} requests, "
        f"{report.prefill_tokens_per_second:.0f} prompt and "
        f"{report.decode_tokens_per_second:.0f} output tokens/s"
    )


async def _simulate(
    config: SimulateConfig, requests: Sequence[SimulatedRequest]
) -> tuple[Report, PipelineSimulator]:
    with trio.fail_after(_NEVER_SECONDS):
        async with open_simulated_engine(config, len(requests)) as (engine, pipeline):
            records = await play(engine, requests)
            report = make_report(records, pipeline.record, engine.counters(), config)
    return report, pipeline


@asynccontextmanager
async def open_simulated_engine(
    config: SimulateConfig,
    max_num_sequences: int = 100_000,
    *,
    step: Callable[[StepPlan], StepResult] | None = None,
    prefix_caching: bool = False,
) -> AsyncIterator[tuple[TokenEngine, PipelineSimulator]]:
    """Run an engine over simulated stages until the block is left.

    The trio program must run under a MockClock whose autojump_threshold is 0.

    Args:
      step: returns the result of a plan; by default each token is 0.
      prefix_caching: as in Scheduler; by default off, because a trace does not contain
        the text of its prompts.
    """
    pipeline = PipelineSimulator(
        step or _step,
        num_stages=config.pipeline_parallel_size,
        times=_read_times(config),
        depth=config.depth,
        transfers=(
            EveryStepTransfers(config.pipeline_parallel_size)
            if config.exchange_always
            else None
        ),
    )
    info = _describe_model(config)
    # It loads no adapters.
    executor: Any = pipeline
    core = LocalCore(_make_scheduler(config, prefix_caching), executor, info=info)
    engine = TokenEngine(
        core,
        info=info,
        max_num_sequences=max_num_sequences,
        scheduling_policy="priority",
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        yield engine, pipeline
        nursery.cancel_scope.cancel()


def _step(plan: StepPlan) -> StepResult:
    """Return a token for each row that samples; which one changes no time."""
    sampled = tuple((0,) for row in plan.rows if row.sample)
    return StepResult(step_id=plan.step_id, sampled=sampled)


def _make_scheduler(config: SimulateConfig, prefix_caching: bool) -> Scheduler:
    return Scheduler(
        num_blocks=config.kv_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        prefix_caching=prefix_caching,
        num_stages=config.pipeline_parallel_size,
        max_step_seconds=config.max_step_seconds,
    )


def _read_times(config: SimulateConfig) -> PipelineTimes:
    return PipelineTimes(
        step_seconds=config.step_seconds,
        token_seconds=config.token_seconds,
        stage_weights=config.stage_weights,
        link_seconds=config.link_seconds,
        return_seconds=config.return_seconds,
        host_seconds=config.host_seconds,
    )


def _describe_model(config: SimulateConfig) -> ModelInfo:
    return ModelInfo(
        name="simulated",
        architecture="Simulated",
        vocab_size=256,
        max_model_len=config.max_model_len,
        eos_token_ids=frozenset(),
    )


@dataclass(slots=True, kw_only=True)
class _Opened:
    """A request whose stream is open; the reader closes it."""

    number: int
    request: SimulatedRequest
    stream: TokenStream
    stack: AsyncExitStack


async def play(
    engine: TokenEngine, requests: Sequence[SimulatedRequest]
) -> list[RequestRecord]:
    """Open requests at their arrival times; returns when all of them have ended.

    trio runs the tasks of an instant in any order. A load must be played the same way
    every time, so one task opens all requests, after all other tasks of the instant.

    Args:
      requests: by arrival; request k samples with the seed k.
    """
    records: list[RequestRecord] = []
    start = trio.current_time()
    by_arrival = itertools.groupby(
        enumerate(requests), key=lambda item: item[1].arrival_seconds
    )
    async with trio.open_nursery() as nursery:
        for arrival_seconds, group in by_arrival:
            await trio.sleep_until(start + arrival_seconds)
            await trio.testing.wait_all_tasks_blocked()
            for number, request in group:
                opened = await _open_request(engine, number, request)
                nursery.start_soon(_read, opened, records)
    return sorted(records, key=lambda record: record.number)


async def _open_request(
    engine: TokenEngine, number: int, request: SimulatedRequest
) -> _Opened:
    prompt = Prompt(token_ids=(0,) * request.prompt_tokens)
    sampling = SamplingParams(max_tokens=request.output_tokens, seed=number)
    async with AsyncExitStack() as stack:
        with _stop_time():
            stream = await stack.enter_async_context(
                engine.open_stream([prompt], sampling)
            )
        return _Opened(
            number=number, request=request, stream=stream, stack=stack.pop_all()
        )


@contextmanager
def _stop_time() -> Iterator[None]:
    """Stop the clock, which would jump ahead while a thread hashes a long prompt."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock), "simulations run in virtual time"
    clock.autojump_threshold = math.inf
    try:
        yield
    finally:
        clock.autojump_threshold = 0


async def _read(opened: _Opened, records: list[RequestRecord]) -> None:
    token_ids: list[int] = []
    first_token_at = trio.current_time()
    async with opened.stack:
        begin = trio.current_time()
        async for delta in opened.stream:
            if not token_ids:
                first_token_at = trio.current_time()
            token_ids += delta.token_ids
    records.append(
        RequestRecord(
            number=opened.number,
            arrived_at=begin,
            first_token_at=first_token_at,
            ended_at=trio.current_time(),
            num_prompt_tokens=opened.request.prompt_tokens,
            token_ids=tuple(token_ids),
        )
    )
