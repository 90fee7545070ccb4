"""The bench of a pipeline reports its figures."""

from __future__ import annotations

import pipeline
import pytest
import trio

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info


async def test_a_turn_measures_the_known_speed_of_a_device(
    autojump_clock: object,
) -> None:
    """In virtual time a step takes 10 ms, and reads a chunk or writes a token."""
    info = make_info(2048)
    core = LocalCore(
        Scheduler(
            num_blocks=1024,
            block_size=16,
            max_num_seqs=pipeline.MAX_NUM_SEQS,
            max_num_batched_tokens=pipeline.CHUNK_TOKENS,
            max_model_len=info.max_model_len,
            prefix_caching=False,
        ),
        FakeExecutor(FakeDevice().step, step_seconds=0.01, depth=2),
        info=info,
    )
    engine = TokenEngine(core, info=info, max_num_sequences=1024)
    opened = pipeline.Opened(engine=engine, stages=())
    load = pipeline.Load(
        num_prompts=4, prompt_tokens=512, num_streams=8, stream_tokens=5
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        figures = await pipeline.take_turn(opened, "two", load, 1)
        nursery.cancel_scope.cancel()
    assert figures["read"] == pytest.approx(25_600)
    # After 2, 4, 6 and 8 steps.
    assert figures["first_ms"] == pytest.approx(50)
    assert figures["written"] == pytest.approx(800)
