"""A real model gives its memory back during a sleep, and answers as before."""

from __future__ import annotations

import psutil
import pytest
import trio

from trioserve import TextEngine, open_engine
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

pytestmark = pytest.mark.slow

PROMPT = Prompt(token_ids=tuple(range(1000, 1160)))


async def generate(engine: TextEngine) -> tuple[list[int], int]:
    """Return new tokens, and how many tokens of the prompt were cached."""
    tokens, num_cached = [], 0
    sampling = SamplingParams(temperature=0.0, max_tokens=4, seed=0)
    async with engine.engine.open_stream([PROMPT], sampling) as deltas:
        async for delta in deltas:
            tokens += delta.token_ids
            num_cached = max(num_cached, delta.num_cached_tokens)
    return tokens, num_cached


async def test_memory_is_given_back_and_taken_again() -> None:
    """The process is looked at from outside: its resident memory shrinks."""
    before = {each.pid for each in psutil.Process().children()}
    with trio.fail_after(300):
        # Steps are not cut by their time, so that later ones have the same numbers.
        async with open_engine(
            process=True,
            num_threads=1,
            kv_cache_memory="256MiB",
            max_step_seconds=1000.0,
            sleep_idle_seconds=1000.0,
        ) as engine:
            [child] = [
                each
                for each in psutil.Process().children()
                if each.pid not in before and each.memory_info().rss > 2**26
            ]
            kept_bytes = len(PROMPT.token_ids) * engine.info.kv_bytes_per_token
            expected = await generate(engine)
            awake_bytes = child.memory_info().rss
            await engine.sleep(1)
            assert engine.is_asleep
            without_cache = child.memory_info().rss
            assert awake_bytes - without_cache > 0.9 * kept_bytes
            told_bytes = engine.engine.sleep_state.memory_bytes
            assert abs(told_bytes - without_cache) < 2**24
            await engine.sleep(2)
            weights = engine.info.weights
            assert weights is not None
            without_model = child.memory_info().rss
            assert without_cache - without_model > 0.9 * weights.num_bytes
            await engine.wake()
            assert await generate(engine) == expected
            await engine.sleep(1)
            await engine.wake()
            assert await generate(engine) == expected
            assert (await generate(engine))[1] > 0
