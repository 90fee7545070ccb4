"""The engines of simulated servers, over fake devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import itertools
import math
import random
from typing import cast

import trio

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.frontend import PoolingEngine, TextEngine
from trioserve.render import RendererWorkers, make_pooling_renderer, make_renderer
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.testing.fake_device import (
    FakeExecutor,
    FakePoolingDevice,
    make_info,
    make_pooling_info,
)
from trioserve.types.logits import LogitsProcessor
from trioserve.types.pooling import PoolingPlan

from .device import TellingDevice
from .guided import find_end
from .model import SimulatedLimits, SimulatedModel


def make_generation(
    model: SimulatedModel,
    limits: SimulatedLimits,
    workers: RendererWorkers,
    processors: tuple[type[LogitsProcessor], ...],
    seed: int,
) -> TextEngine:
    """Make an engine that writes the texts of a model.

    Args:
      workers: run the calls of the renderer.
      seed: decides when grammars are late.
    """
    info = replace(
        make_info(limits.max_model_len, vocab_size=model.tokenizer.get_vocab_size()),
        logits_processors=tuple(each.name for each in processors),
        # Only texts with a grammar have it.
        eos_token_ids=frozenset([find_end(model.tokenizer)]),
    )
    lateness = random.Random(f"lateness {seed}")
    failures = itertools.chain(limits.fail_at_steps, itertools.repeat(None))

    def make_core() -> LocalCore:
        device = TellingDevice(
            model.texts,
            block_size=limits.block_size,
            faults=limits.faults,
            lateness=lateness,
        )
        scheduler = Scheduler(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            max_step_seconds=math.inf,
        )
        executor = FakeExecutor(
            device.step,
            seconds_of=limits.seconds_of,
            depth=limits.depth,
            # As on a GPU.
            max_depth=limits.depth + (limits.depth > 1),
            fail_at_step=next(failures),
        )
        return LocalCore(scheduler, executor, info=info)

    async def reopen() -> LocalCore:
        await trio.sleep(1.0)
        return make_core()

    engine = TokenEngine(
        make_core(),
        info=info,
        max_num_sequences=limits.max_num_seqs + limits.max_num_waiting,
        max_num_running=limits.max_num_seqs,
        scheduling_policy="priority",
        reopen=reopen if limits.restarts else None,
    )
    renderer = make_renderer(model.parts, limits.render, info=info, workers=workers)
    return TextEngine(engine, renderer, processors)


def make_pooling(
    model: SimulatedModel, limits: SimulatedLimits, workers: RendererWorkers
) -> PoolingEngine:
    """Make an engine that turns a text into the fake_vector of its tokens.

    It does not start again after a failure.
    """
    info = make_info(limits.max_model_len, vocab_size=model.tokenizer.get_vocab_size())
    pooling = make_pooling_info()
    executor = FakeExecutor(
        FakePoolingDevice().step,
        # It reads fields that plans of both kinds have.
        seconds_of=cast(Callable[[PoolingPlan], float], limits.seconds_of),
        depth=limits.depth,
        fail_at_step=next(iter(limits.fail_at_steps), None),
    )
    scheduler = PoolingScheduler(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    engine = TensorEngine(
        LocalPoolingCore(scheduler, executor),
        info=info,
        pooling=pooling,
        max_num_inputs=limits.max_num_seqs + limits.max_num_waiting,
        scheduling_policy="priority",
    )
    renderer = make_pooling_renderer(
        model.pooling_parts, limits.render, info=info, pooling=pooling, workers=workers
    )
    return PoolingEngine(engine, renderer)
