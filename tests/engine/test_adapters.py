"""Adapters of an engine in virtual time: loads, ends, restarts, and the blocks that they share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from trioserve.engine.generation.core import GenerationCore, SequenceGroup
from trioserve.engine.generation.engine import TokenEngine
from trioserve.errors import (
    AdapterNotFound,
    AdapterRefused,
    EngineRestarting,
    InvalidAdapter,
)
from trioserve.testing.fake_device import FakeDevice, make_adapter
from trioserve.types.adapter import AdapterFacts, AdapterSource
from trioserve.types.ids import SequenceId
from trioserve.types.output import SequenceError, TokenDelta
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

MakeEngine = Callable[..., TokenEngine]
PROMPT = Prompt(token_ids=tuple(range(9)))

EVERY_WAY = pytest.mark.parametrize("is_remote", [False, True], indirect=True)


def make_device() -> FakeDevice:
    """Return a device that writes the number of the adapter a thousandfold."""
    tokens = {number: lambda seed, i, n=number: 100 * n + i for number in range(1, 9)}
    return FakeDevice(block_size=4, adapter_tokens=tokens)


def refuse_broken(source: AdapterSource) -> AdapterFacts:
    if "broken" in source.path:
        raise InvalidAdapter(source.name, "r: is missing")
    return make_adapter(source)


async def write(engine: TokenEngine, adapter: str, num_tokens: int = 3) -> list[int]:
    """Return the tokens of a sequence, and behind them how many of its prompt were cached."""
    params = SamplingParams(seed=0, max_tokens=num_tokens)
    tokens: list[int] = []
    async with engine.open_stream([PROMPT], params, adapter=adapter) as stream:
        async for delta in stream:
            tokens += delta.token_ids
    return [*tokens, delta.num_cached_tokens]


@EVERY_WAY
async def test_a_load_is_not_in_the_way_and_an_unload_ends_nothing(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(
        device=make_device(), max_num_seqs=2, max_adapters=1, read_adapter=refuse_broken
    )
    await nursery.start(engine.run)
    alone = trio.current_time()
    without = await write(engine, "", 40)
    alone = trio.current_time() - alone
    for name in ("french", "fake"):
        with pytest.raises(AdapterNotFound, match="'%s' cannot be found" % name):
            await write(engine, name)
    began = trio.current_time()
    async with trio.open_nursery() as requests:
        requests.start_soon(engine.load_adapter, "french", "one")
        assert (await write(engine, "", 40))[:-1] == without[:-1]
    assert trio.current_time() - began == pytest.approx(max(0.5, alone), abs=0.02)
    assert list(engine.adapters) == ["french"]

    wrong = {
        "fake": "'fake' is a name of the model",
        "a\nb": "visible characters",
        "german": "1 adapters are loaded or in use, and at most 1 are possible",
        "french": "'french' is loaded already; set load_inplace",
    }
    for name, message in wrong.items():
        with pytest.raises(AdapterRefused, match=message):
            await engine.load_adapter(name, "two")
    with pytest.raises(InvalidAdapter, match="the adapter 'french': r: is missing"):
        await engine.load_adapter("french", "broken", replaces=True)

    # Two run, and the third one waits.
    written: list[list[int]] = []

    async def note() -> None:
        written.append(await write(engine, "french", 20))

    async with trio.open_nursery() as requests:
        for _ in range(3):
            requests.start_soon(note)
        await trio.sleep(0.05)
        assert engine.statistics().scheduler.num_waiting == 1
        await engine.unload_adapter("french")
        assert not engine.adapters
        with pytest.raises(AdapterNotFound):
            await write(engine, "french")
        with pytest.raises(AdapterNotFound, match="'french' cannot be found"):
            await engine.unload_adapter("french")
        with pytest.raises(AdapterRefused, match="loaded or in use"):
            await engine.load_adapter("german", "two")
    assert [tokens[:-1] for tokens in written] == 3 * [[*range(100, 120)]]
    # Its memory is free.
    await engine.load_adapter("german", "two")
    number = engine.adapters["german"].facts.number
    assert (await write(engine, "german"))[0] == 100 * number
    await engine.unload_adapter("german")
    assert engine.statistics() == make_engine(max_num_seqs=2).statistics()


@EVERY_WAY
async def test_a_name_that_is_loaded_anew_never_hits_old_blocks(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(device=make_device())
    await nursery.start(engine.run)
    assert (await write(engine, ""))[-1] == 0
    await engine.load_adapter("french", "one")
    assert await write(engine, "french") == [100, 101, 102, 0]
    assert (await write(engine, "french"))[-1] == 8
    running = SamplingParams(seed=0, max_tokens=20)
    async with engine.open_stream([PROMPT], running, adapter="french") as old:
        await old.__anext__()
        await engine.load_adapter("french", "two", replaces=True)
        assert await write(engine, "french") == [200, 201, 202, 0]
        rest = [token async for delta in old for token in delta.token_ids]
        assert rest[-1] == 119, "it goes on with the adapter that it began with"
    # The same content again, with another number.
    await engine.load_adapter("french", "one", replaces=True)
    assert await write(engine, "french") == [300, 301, 302, 8]
    assert (await write(engine, ""))[-1] == 8


@EVERY_WAY
async def test_a_name_is_loaded_once_at_a_time(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(device=make_device())
    await nursery.start(engine.run)
    ends: list[tuple[str, float]] = []

    async def load(path: str, replaces: bool) -> None:
        try:
            await engine.load_adapter("french", path, replaces=replaces)
        except AdapterRefused:
            path = "refused"
        ends.append((path, round(trio.current_time() - began, 1)))

    began = trio.current_time()
    async with trio.open_nursery() as requests:
        for path, replaces in (("one", False), ("two", False), ("three", True)):
            requests.start_soon(load, path, replaces)
            await trio.testing.wait_all_tasks_blocked(0.01)
        # Other names do not wait.
        await engine.load_adapter("german", "four")
        assert trio.current_time() - began < 0.6
        await engine.unload_adapter("french")
        assert "french" not in engine.adapters, "the unload waits its turn"
    assert sorted(ends) == [("one", 0.5), ("refused", 0.5), ("three", 1.0)]
    assert list(engine.adapters) == ["german"]


async def test_a_cancelled_load_leaves_nothing(
    make_engine: MakeEngine, nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    engine = make_engine(max_adapters=1)
    await nursery.start(engine.run)
    with trio.move_on_after(0.1):
        await engine.load_adapter("french", "one")
    assert not engine.adapters
    await engine.load_adapter("french", "one")


@pytest.mark.parametrize("is_remote", [True], indirect=True)
async def test_an_adapter_that_goes_while_a_request_is_on_its_way(
    make_core: Callable[..., GenerationCore],
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
) -> None:
    core = make_core()
    outputs: list[TokenDelta] = []
    await nursery.start(core.run, outputs.extend)
    await core.add(
        SequenceGroup(
            first_id=SequenceId(5),
            prompts=(PROMPT,),
            sampling=SamplingParams(n=2),
            seed=0,
            adapter="french",
        )
    )
    await trio.sleep(1)
    error = SequenceError(adapter="french")
    assert outputs == [
        TokenDelta(sequence_id=SequenceId(5 + index), index=index, error=error)
        for index in range(2)
    ]


@EVERY_WAY
async def test_a_restart_loads_all_adapters_again(
    make_core: Callable[..., GenerationCore],
    make_engine: MakeEngine,
    nursery: trio.Nursery,
    autojump_clock: trio.abc.Clock,
) -> None:
    gone: set[str] = set()

    def read(source: AdapterSource) -> AdapterFacts:
        if source.path in gone:
            raise InvalidAdapter(source.name, "there is no such folder")
        return make_adapter(source)

    async def reopen() -> GenerationCore:
        await trio.sleep(1)
        return make_core(device=make_device(), read_adapter=read)

    engine = make_engine(fail_at_step=8, reopen=reopen, read_adapter=read)
    await nursery.start(engine.run)
    for name in ("french", "german", "greek"):
        await engine.load_adapter(name, f"/{name}")
    gone.add("/german")
    with pytest.raises(EngineRestarting):
        await write(engine, "", 40)
    await trio.sleep(1.5)
    with pytest.raises(EngineRestarting):
        await write(engine, "french")
    with pytest.raises(EngineRestarting):
        engine.check_lost_adapter("greek")
    await trio.sleep(1.5)
    engine.check_lost_adapter("german")
    assert sorted(engine.adapters) == ["french", "greek"]
    number = engine.adapters["greek"].facts.number
    assert (await write(engine, "greek"))[0] == 100 * number
