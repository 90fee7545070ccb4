"""An engine whose steps are launched in one thread and finished in another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from operator import methodcaller
from pathlib import Path
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
import trio

from trioserve.config import ModelConfig
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.executor import LocalExecutor
from trioserve.model.loading.load import load_model
from trioserve.model.runner import ModelRunner
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.models import save_tiny_model
from trioserve.types.client import Client
from trioserve.types.output import StepResult
from trioserve.types.plan import StepPlan
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

pytestmark = pytest.mark.slow

NUM_TOKENS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("llama"))


@asynccontextmanager
async def open_engine(
    folder: Path, *, max_num_seqs: int = 8, num_blocks: int = 24
) -> AsyncIterator[TokenEngine]:
    """Open an engine that launches and finishes steps by two calls, as on a GPU."""
    model = load_model(folder, ModelConfig(), name="tiny")
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_model_len=48,
    )
    scheduler = Scheduler(
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=16,
        max_model_len=48,
    )
    executor = LocalExecutor[StepPlan, StepResult](
        runner.launch, methodcaller("finish"), depth=2
    )
    core = LocalCore(scheduler, executor, info=model.info)
    engine = TokenEngine(core, info=model.info, max_num_sequences=100)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        yield engine
        nursery.cancel_scope.cancel()


def make_prompt(number: int) -> tuple[int, ...]:
    chance = random.Random(number)
    return tuple(chance.choices(range(3, 97), k=chance.randint(1, 20)))


@cache
def load_reference(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def generate(folder: Path, prompt: tuple[int, ...]) -> list[int]:
    output = load_reference(folder).generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


async def test_streams_equal_generate_while_others_come_and_leave(
    folder: Path,
) -> None:
    """The pool of blocks is too small for all of them."""
    written: dict[int, list[int]] = {}
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)

    async def read(engine: TokenEngine, number: int) -> None:
        tokens: list[int] = []
        prompts = [Prompt(token_ids=make_prompt(number))]
        async with engine.open_stream(prompts, params) as deltas:
            async for delta in deltas:
                tokens += delta.token_ids
                # The reader of every third stream leaves early.
                if number % 3 == 0 and len(tokens) > number % 7:
                    return
        written[number] = tokens

    with trio.fail_after(180):
        # Three streams of average length are too many, so some are preempted in any order.
        async with open_engine(folder, num_blocks=16) as engine:
            fresh = engine.statistics()
            async with trio.open_nursery() as readers:
                for number in range(15):
                    readers.start_soon(read, engine, number)
            while engine.statistics() != fresh:
                await trio.sleep(0.01)
            assert engine.counters().num_preemptions > 0
    assert len(written) == 10
    for number, tokens in written.items():
        assert tokens == generate(folder, make_prompt(number))


async def test_a_stream_that_makes_room_for_another_client_equals_generate(
    folder: Path,
) -> None:
    """There are blocks for both streams, but the first client has taken both slots."""
    written: dict[int, list[int]] = {}
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    has_token = trio.Event()

    async def read(engine: TokenEngine, number: int, client: Client) -> None:
        tokens = written[number] = []
        prompts = [Prompt(token_ids=make_prompt(number))]
        async with engine.open_stream(prompts, params, client=client) as deltas:
            async for delta in deltas:
                tokens += delta.token_ids
                if number == 1 and tokens:
                    has_token.set()

    with trio.fail_after(60):
        async with open_engine(folder, max_num_seqs=2) as engine:
            async with trio.open_nursery() as readers:
                for number in range(4):
                    readers.start_soon(read, engine, number, Client(name="hog"))
                await has_token.wait()
                await read(engine, 4, Client(name="stranger"))
                assert not all(len(written[each]) == NUM_TOKENS for each in range(4))
            assert engine.counters().num_preemptions == 1
    for number, tokens in written.items():
        assert tokens == generate(folder, make_prompt(number))
