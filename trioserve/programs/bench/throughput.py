"""`trioserve bench throughput`: requests directly to an engine, without HTTP and text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import json
import random
import statistics

import trio

from ...config import EngineConfig, ProcessConfig
from ...config.checks import check_at_least
from ...errors import StartupError
from ...frontend import TextEngine
from ...startup.open import open_served_engine
from ...types.prompt import Prompt
from ...types.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsConfig:
    """The load.

    Args:
      requests: Requests of a round; all are given to the engine at once.
      input_tokens: Tokens of each prompt. They are random, so no prefix is cached.
      output_tokens: Tokens of each answer.
      rounds: Rounds; the median counts.
      warmup: Requests that are run first and not measured.
      seed: Number on which the prompts depend.
      as_json: Print JSON in place of a text.
    """

    requests: int = 64
    input_tokens: int = 128
    output_tokens: int = 64
    rounds: int = 3
    warmup: int = 2
    seed: int = 0
    as_json: bool = False

    def __post_init__(self) -> None:
        for name in ("requests", "input_tokens", "output_tokens", "rounds"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("warmup", self.warmup, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputConfig:
    """The load and the engine."""

    load: RoundsConfig = field(default_factory=RoundsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The figures of all rounds: seconds of each, and the work of one."""

    seconds: tuple[float, ...]
    load: RoundsConfig

    def describe(self) -> str:
        load, median = self.load, statistics.median(self.seconds)
        figures = {
            "requests_per_second": load.requests / median,
            "output_tokens_per_second": load.requests * load.output_tokens / median,
            "total_tokens_per_second": load.requests
            * (load.input_tokens + load.output_tokens)
            / median,
        }
        if load.as_json:
            return json.dumps({**figures, "seconds_by_round": self.seconds}) + "\n"
        plural = "" if load.rounds == 1 else "s"
        each = ", ".join(f"{seconds:.2f}" for seconds in self.seconds)
        return (
            f"{load.requests} requests of {load.input_tokens} tokens in and "
            f"{load.output_tokens} out, median of {load.rounds} round{plural} ({each} s):\n"
            f"  requests/s       {figures['requests_per_second']:10.2f}\n"
            f"  output tokens/s  {figures['output_tokens_per_second']:10.1f}\n"
            f"  all tokens/s     {figures['total_tokens_per_second']:10.1f}\n"
        )


async def measure_throughput(config: ThroughputConfig) -> Throughput:
    """Load the model, run the rounds, and return their figures.

    Raises:
      StartupError: the model cannot be served, does not generate, or is too short.
    """
    load = config.load
    # All requests of a round wait at once.
    scheduler = replace(
        config.engine.scheduler,
        max_queued_requests=max(
            config.engine.scheduler.max_queued_requests, 2 * load.requests
        ),
    )
    engine_config = replace(config.engine, scheduler=scheduler)
    process = config.process.engine_process
    async with open_served_engine(engine_config, process=process) as engine:
        if not isinstance(engine, TextEngine):
            raise StartupError(
                f"{engine.info.name} does not generate, and bench throughput counts tokens"
            )
        longest = engine.info.max_model_len
        if load.input_tokens + load.output_tokens > longest:
            raise StartupError(
                f"--input-tokens and --output-tokens exceed the model's {longest} tokens"
            )
        chance = random.Random(load.seed)
        await _run_round(engine, load, load.warmup, chance)
        seconds = [
            await _run_round(engine, load, load.requests, chance)
            for _ in range(load.rounds)
        ]
    return Throughput(seconds=tuple(seconds), load=load)


async def _run_round(
    engine: TextEngine, load: RoundsConfig, count: int, chance: random.Random
) -> float:
    sampling = SamplingParams(
        max_tokens=load.output_tokens, temperature=0.0, ignore_eos=True
    )
    size = engine.info.vocab_size
    prompts = [
        Prompt(token_ids=tuple(chance.choices(range(size), k=load.input_tokens)))
        for _ in range(count)
    ]
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(_generate, engine, prompt, sampling)
    return trio.current_time() - began


async def _generate(
    engine: TextEngine, prompt: Prompt, sampling: SamplingParams
) -> None:
    async with engine.engine.open_stream([prompt], sampling) as deltas:
        async for _ in deltas:
            pass
