"""The pipeline in virtual time: chunks flow, and stages wait only for sampled tokens.

In most tests a stage's step takes one second, and links take no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
import random

import pytest
import trio
import trio.testing

from trioserve.engine.generation.engine import TokenEngine
from trioserve.programs.simulate import (
    Bar,
    PipelineSimulator,
    PipelineTimes,
    SimulateConfig,
    SimulatedRequest,
    TransfersNotMatched,
    open_simulated_engine,
    play,
    simulate,
)
from trioserve.testing.fake_device import FakeDevice, count_up
from trioserve.types.plan import StepPlan, StepRow
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams
from trioserve.types.transfers import Transfer, list_transfers

# Ends a test that waits for a message that never comes.
NEVER_SECONDS = 1e6


def make_config(num_stages: int, **changes: object) -> SimulateConfig:
    options: dict[str, object] = {
        "pipeline_parallel_size": num_stages,
        "step_seconds": float(num_stages),
        "token_seconds": 0.0,
        "link_seconds": 0.0,
        "return_seconds": 0.0,
        "host_seconds": 0.0,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 32,
    }
    return SimulateConfig(**(options | changes))  # type: ignore[arg-type]


def make_request(
    prompt_tokens: int, output_tokens: int = 1, arrival_seconds: float = 0.0
) -> SimulatedRequest:
    return SimulatedRequest(
        arrival_seconds=arrival_seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


async def run(
    config: SimulateConfig, requests: Sequence[SimulatedRequest]
) -> PipelineSimulator:
    """Run requests, and check their outputs."""
    step = FakeDevice(block_size=config.block_size).step
    with trio.fail_after(NEVER_SECONDS):
        async with open_simulated_engine(config, step=step) as (engine, pipeline):
            for record in await play(engine, requests):
                expected = requests[record.number].output_tokens
                assert record.token_ids == tuple(
                    count_up(record.number, index) for index in range(expected)
                )
    return pipeline


def find(bars: Iterable[Bar], stage: int) -> list[Bar]:
    return [bar for bar in bars if bar.stage == stage]


@pytest.mark.parametrize("num_stages", [2, 8])
async def test_a_stage_takes_the_next_chunk_while_later_ones_have_the_last(
    num_stages: int, autojump_clock: trio.testing.MockClock
) -> None:
    num_chunks = 12
    config = make_config(num_stages)
    pipeline = await run(config, [make_request(32 * num_chunks)])
    first = find(pipeline.record.bars, 0)
    last = find(pipeline.record.bars, num_stages - 1)
    assert [bar.chunks for bar in first] == [((0, k + 1),) for k in range(num_chunks)]
    # Steps follow each other without a gap.
    assert [(bar.begin, bar.end) for bar in first] == [
        (k, k + 1) for k in range(num_chunks)
    ]
    for (_, following), done in zip(pairwise(first), last):
        assert following.begin < done.end
    assert last[-1].end == num_chunks + num_stages - 1


@pytest.mark.parametrize("num_stages", [4])
async def test_a_first_stage_that_waits_for_every_answer_has_no_company(
    num_stages: int, autojump_clock: trio.testing.MockClock
) -> None:
    config = make_config(num_stages, exchange_always=True)
    pipeline = await run(config, [make_request(32 * 6)])
    assert [bar.begin for bar in find(pipeline.record.bars, 0)] == [
        num_stages * k for k in range(6)
    ]


def count_sampled(transfers: Iterable[Transfer]) -> int:
    return sum(transfer.what == "sampled" for transfer in transfers)


@pytest.mark.parametrize(("always", "num_answers"), [(False, 5), (True, 14)])
async def test_tokens_go_back_for_steps_that_sample_and_for_no_other(
    always: bool, num_answers: int, autojump_clock: trio.testing.MockClock
) -> None:
    config = make_config(3, exchange_always=always)
    # Ten chunks, the last of which samples, and then four tokens.
    pipeline = await run(config, [make_request(32 * 10, 5)])
    assert pipeline.record.num_steps == 14
    assert count_sampled(pipeline.record.sent) == num_answers


async def test_one_stage_tells_nobody_anything(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pipeline = await run(make_config(1), [make_request(100, 5), make_request(3, 9)])
    assert pipeline.record.sent == []


async def leave_at_random(
    engine: TokenEngine,
    number: int,
    chance: random.Random,
    written: dict[int, list[int]],
) -> None:
    await trio.sleep(chance.uniform(0, 30))
    length = chance.randint(1, 40)
    family = chance.randrange(3)
    prompt = Prompt(token_ids=tuple(family + i for i in range(length)))
    sampling = SamplingParams(max_tokens=chance.randint(1, 24), seed=number)
    async with engine.open_stream([prompt], sampling) as stream:
        with trio.move_on_after(chance.choice((5, 20, NEVER_SECONDS))):
            async for delta in stream:
                written[number] += delta.token_ids


@pytest.mark.parametrize(
    ("num_stages", "always", "seed"), [(2, True, 1), (4, True, 0), (4, False, 1)]
)
async def test_whatever_happens_all_stages_agree_on_what_they_send(
    num_stages: int, always: bool, seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Chunks, aborts, preemptions, shared prefixes, uneven stages and slow links."""
    chance = random.Random(seed)
    device = FakeDevice(block_size=4, reads_blocks=True)
    config = make_config(
        num_stages,
        kv_blocks=17,
        block_size=4,
        max_num_seqs=5,
        max_num_batched_tokens=chance.choice((5, 9, 17)),
        token_seconds=0.05,
        stage_weights=tuple(chance.uniform(0.2, 2) for _ in range(num_stages)),
        link_seconds=chance.choice((0.0, 0.3)),
        return_seconds=chance.choice((0.0, 0.3, 2.0)),
        host_seconds=chance.choice((0.0, 0.2)),
        async_scheduling=chance.random() < 0.7,
        exchange_always=always,
    )
    written: dict[int, list[int]] = {number: [] for number in range(20)}
    with trio.fail_after(NEVER_SECONDS):
        async with open_simulated_engine(
            config, step=device.step, prefix_caching=True
        ) as (engine, pipeline):
            fresh = engine.statistics()
            async with trio.open_nursery() as nursery:
                for number in written:
                    # Tasks run in any order, so each has its own random numbers.
                    own = random.Random(1000 * seed + number)
                    nursery.start_soon(leave_at_random, engine, number, own, written)
            # Wait until the steps in flight have ended.
            await trio.sleep(1000)
            assert engine.statistics() == fresh
            assert engine.counters().num_preemptions > 0
    for number, token_ids in written.items():
        assert token_ids == [count_up(number, i) for i in range(len(token_ids))]
    check_transfers(pipeline, device.plans, num_stages, always)


def check_transfers(
    pipeline: PipelineSimulator, plans: list[StepPlan], num_stages: int, always: bool
) -> None:
    expected = [e for plan in plans for e in list_transfers(plan, num_stages)]
    sent = pipeline.record.sent
    if always:
        expected = [transfer for transfer in expected if transfer.what == "hidden"]
        assert count_sampled(sent) == pipeline.record.num_steps
        sent = [transfer for transfer in sent if transfer.what == "hidden"]
    taken = [message.transfer for message in pipeline.record.messages]
    for stage in range(num_stages):
        ours = [transfer for transfer in expected if transfer.sender == stage]
        assert [transfer for transfer in sent if transfer.sender == stage] == ours
        read = [e for e in taken if e.sender == stage and e in set(ours)]
        # The first stage never receives the very last tokens, which have no reader.
        assert read == ours[: len(read)]
        assert len(ours) - len(read) <= (
            0 if stage < num_stages - 1 else num_stages + 1
        )


async def test_a_message_that_nobody_expects_ends_the_simulation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Real processes would be in a deadlock; the simulation raises an error."""
    pipeline = PipelineSimulator(FakeDevice().step, num_stages=2, times=PipelineTimes())
    row = StepRow(slot=0, start=0, num_tokens=4, new_block_ids=(), sample=False)
    plan = StepPlan(step_id=1, starts=(), rows=(row,))
    other = list_transfers(StepPlan(step_id=2, starts=(), rows=(row,)), 2)[0]
    pipeline._links[0, 1].send(other)  # noqa: SLF001
    with pytest.RaisesGroup(TransfersNotMatched, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(pipeline.run)
            # The plan has no start, by which the reader would know the slot.
            pipeline._reader.read = lambda plan: ("chunk", ())  # type: ignore[method-assign]
            pipeline.submit(plan, lambda: None)


# Seconds of a step of the whole model. About as on a GPU, a chunk of 512 tokens takes 4
# times as much as the rest. With four stages, links take 1 % of a stage's chunk.
REAL = {
    "step_seconds": 0.016,
    "token_seconds": 0.000_125,
    "link_seconds": 0.000_2,
    "return_seconds": 0.000_2,
    "host_seconds": 0.0,
    "max_num_batched_tokens": 512,
    "kv_blocks": 16_384,
}


async def measure_prefill(config: SimulateConfig) -> float:
    """Return the tokens per second of a long prompt beside twelve that decode.

    N stages take K + N - 1 stage times for K chunks. With 80 chunks, filling and
    emptying four stages costs only 4 %, which does not hide other losses.
    """
    others = [make_request(8, 60_000 // 12) for _ in range(12)]
    long = make_request(512 * 80)
    with trio.fail_after(NEVER_SECONDS):
        async with open_simulated_engine(config) as (engine, _):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(play, engine, others)
                await trio.sleep(1)
                (record,) = await play(engine, [long])
                nursery.cancel_scope.cancel()
    return long.prompt_tokens / record.first_token_seconds


@pytest.fixture(scope="module")
def single_stage_prefill() -> float:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(measure_prefill, make_config(1, **REAL), clock=clock)


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [4])
async def test_a_long_prompt_is_read_as_many_times_as_fast_as_there_are_stages(
    num_stages: int,
    single_stage_prefill: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    speed = await measure_prefill(make_config(num_stages, **REAL))
    assert 0.9 * num_stages < speed / single_stage_prefill < 1.1 * num_stages


@pytest.mark.parametrize("num_stages", [4])
async def test_with_an_answer_to_every_step_it_is_read_as_fast_as_by_one_stage(
    num_stages: int,
    single_stage_prefill: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    config = make_config(num_stages, **REAL, exchange_always=True)
    speed = await measure_prefill(config)
    assert 0.9 < speed / single_stage_prefill < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [4])
def test_decoding_in_micro_batches_of_one_size_is_as_many_times_as_fast(
    num_stages: int,
) -> None:
    """Micro-batches must not shrink where weights dominate a step.

    Links must not be slow, either. Only its own sequence waits for a token, and the
    time of its way back is lost once in N steps.
    """

    def measure(num_stages: int) -> float:
        config = make_config(
            num_stages,
            # Hidden states of eight tokens arrive sooner than states of 512.
            **REAL | {"max_num_seqs": 8 * num_stages, "link_seconds": 0.000_05},
            requests=8 * num_stages,
            rate=float("inf"),
            prompt_tokens=(4, 4),
            output_tokens=(50, 50),
        )
        return simulate(config)[0].decode_tokens_per_second

    assert 0.9 * num_stages < measure(num_stages) / measure(1) < 1.1 * num_stages


@pytest.mark.parametrize("num_stages", [3])
async def test_nobody_starves_while_long_prompts_keep_coming(
    num_stages: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Eleven sequences cannot fill the stages evenly, and their priorities differ."""
    gaps: list[float] = []

    async def read(engine: TokenEngine, number: int) -> None:
        prompt = Prompt(token_ids=(number,))
        sampling = SamplingParams(max_tokens=60, seed=number)
        async with engine.open_stream(
            [prompt], sampling, priority=number % 3 - 1
        ) as stream:
            begin = None
            async for _ in stream:
                now = trio.current_time()
                gaps.append(0.0 if begin is None else now - begin)
                begin = now

    async with open_simulated_engine(make_config(num_stages)) as (engine, _):
        async with trio.open_nursery() as nursery:
            for number in range(11):
                nursery.start_soon(read, engine, number)
            prompts = [make_request(200, 2, 5.0 * k) for k in range(25)]
            nursery.start_soon(play, engine, prompts)
    assert len(gaps) == 11 * 60
    # A turn comes after at most 2 N - 1 steps, and the token after N stages.
    assert max(gaps) <= 2 * num_stages


@pytest.mark.slow
def test_a_simulation_gives_the_same_figures_every_time() -> None:
    """Threads hash prompts of this length, and virtual time does not see threads."""
    config = SimulateConfig(
        requests=5, rate=40.0, prompt_tokens=(3000, 9000), output_tokens=(4, 20)
    )
    reports = {simulate(config)[0] for _ in range(2)}
    assert len(reports) == 1
    assert simulate(replace(config, seed=1))[0] not in reports
