"""What do two stages bring, and what does it bring that chunks send no tokens back?

Question
  A model's layers are cut into two stages of one thread each. How much sooner are long
  prompts read than by one process with one thread? And how much of that is due to the
  skip: that the first stage goes on to the next chunk without waiting for tokens that a
  chunk in the middle of a prompt does not have?

      one      the whole model, one thread
      skip     two stages, as the server runs them
      forced   two stages that exchange tokens in every step, and wait for them

Machine
  Two cores that nobody else wants; run it alone.

How to read it
  prefill    prompts that come at once and want one token each: prompt tokens a second
             until the last one has it; median seconds until a prompt has it.
  alone      the same for one prompt.
  decode     streams with short prompts: output tokens a second of all.
  ratio      to "one", of tokens a second.
  The three are loaded once and take turns; figures are medians of the rounds. Prompts are
  random and shared by nobody; the prefix cache is off.

    PYTHONPATH=. python bench/pipeline.py [--rounds 3] [--json out.json] [--plot out.png]
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
import json
from pathlib import Path
import random
import statistics
import sys

import trio

from trioserve.config import (
    DEFAULT_MODEL,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from trioserve.cores import open_core
from trioserve.engine import Engine, LocalCore
from trioserve.pipeline import open_pipeline
from trioserve.scheduler import Scheduler
from trioserve.steps import Prompt, SamplingParams

MODES = ("one", "skip", "forced")
NUM_STAGES = 2
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked for.

    Args:
      prompt_tokens, chunk_tokens: of each prompt, and of one step.
    """

    num_prompts: int = 16
    prompt_tokens: int = 1500
    chunk_tokens: int = 256
    num_streams: int = 64
    stream_tokens: int = 32


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one round gave, or the medians of all."""

    prefill_rate: float
    prefill_first_seconds: float
    alone_rate: float
    decode_rate: float


def make_config(model: str, dtype: str, load: Load) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            model=model,
            dtype=dtype,  # type: ignore[arg-type]
            num_threads=1,
            device="cpu",
            max_model_len=MAX_MODEL_LEN,
        ),
        cache=CacheConfig(kv_cache_memory="2GiB", prefix_caching=False),
        scheduler=SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=load.chunk_tokens
        ),
    )


@asynccontextmanager
async def open_mode(mode: str, config: EngineConfig) -> AsyncIterator[Engine]:
    """Load a model, and run its engine until the block is left."""
    async with AsyncExitStack() as stack:
        if mode == "one":
            loaded = await stack.enter_async_context(open_core(config, "generate"))
            assert isinstance(loaded.core, LocalCore)
            engine = Engine(loaded.core, info=loaded.info, max_num_sequences=1000)
        else:
            engine = await _open_stages(stack, config, forced=mode == "forced")
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(engine.run)
        yield engine
        nursery.cancel_scope.cancel()


async def _open_stages(
    stack: AsyncExitStack, config: EngineConfig, *, forced: bool
) -> Engine:
    config = replace(config, parallel=ParallelConfig(pipeline_parallel_size=NUM_STAGES))
    pipeline = await stack.enter_async_context(open_pipeline(config))
    executor = await pipeline.connect(config, MAX_MODEL_LEN, exchanges_always=forced)
    scheduler = Scheduler(
        num_blocks=pipeline.num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens or 0,
        max_model_len=MAX_MODEL_LEN,
        prefix_caching=False,
        num_stages=NUM_STAGES,
    )
    core = LocalCore(scheduler, executor, info=pipeline.info)
    return Engine(core, info=pipeline.info, max_num_sequences=1000)


async def ask(
    engine: Engine, chance: random.Random, num: int, length: int, num_tokens: int
) -> tuple[float, float]:
    """Send requests at once; returns seconds to the end, and to a first token (median)."""
    firsts: list[float] = []
    begin = trio.current_time()

    async def read(prompt: Prompt) -> None:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True
        )
        async with engine.open_stream([prompt], sampling) as deltas:
            await anext(deltas)
            firsts.append(trio.current_time() - begin)
            async for _ in deltas:
                pass

    async with trio.open_nursery() as nursery:
        for _ in range(num):
            ids = tuple(chance.choices(range(100, 40_000), k=length))
            nursery.start_soon(read, Prompt(token_ids=ids))
    return trio.current_time() - begin, statistics.median(firsts)


async def measure(engine: Engine, load: Load, seed: int) -> Figures:
    chance = random.Random(seed)
    length = load.prompt_tokens
    seconds, first = await ask(engine, chance, load.num_prompts, length, 1)
    alone, _ = await ask(engine, chance, 1, length, 1)
    decode, _ = await ask(engine, chance, load.num_streams, 4, load.stream_tokens)
    return Figures(
        prefill_rate=load.num_prompts * length / seconds,
        prefill_first_seconds=first,
        alone_rate=length / alone,
        decode_rate=load.num_streams * load.stream_tokens / decode,
    )


async def compare(
    config: EngineConfig, load: Load, rounds: int, show: Callable[[str], None]
) -> dict[str, Figures]:
    found: dict[str, list[Figures]] = {mode: [] for mode in MODES}
    async with AsyncExitStack() as stack:
        engines = {
            mode: await stack.enter_async_context(open_mode(mode, config))
            for mode in MODES
        }
        # Warm: a chunk of each size.
        for engine in engines.values():
            await ask(engine, random.Random(0), 2, load.chunk_tokens + 4, 4)
        for number in range(rounds):
            order = MODES if number % 2 == 0 else MODES[::-1]
            for mode in order:
                figures = await measure(engines[mode], load, seed=number)
                found[mode].append(figures)
                show(f"round {number + 1}, {mode}: {figures}")
    return {mode: take_medians(each) for mode, each in found.items()}


def take_medians(rounds: list[Figures]) -> Figures:
    taken = [asdict(each) for each in rounds]
    return Figures(
        **{name: statistics.median(each[name] for each in taken) for name in taken[0]}
    )


def write_table(found: dict[str, Figures], load: Load) -> list[str]:
    """Return the lines of a Markdown table, ratios to one stage included."""
    one = found["one"]
    lines = [
        f"{load.num_prompts} prompts of {load.prompt_tokens} tokens in chunks of "
        f"{load.chunk_tokens}; {load.num_streams} streams",
        "",
        "| stages | prefill tokens/s | ratio | first token, median | alone tokens/s "
        "| ratio | decode tokens/s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, each in found.items():
        lines.append(
            f"| {mode} | {each.prefill_rate:.0f} "
            f"| {each.prefill_rate / one.prefill_rate:.2f} "
            f"| {each.prefill_first_seconds:.1f} s "
            f"| {each.alone_rate:.0f} | {each.alone_rate / one.alone_rate:.2f} "
            f"| {each.decode_rate:.0f} | {each.decode_rate / one.decode_rate:.2f} |"
        )
    skip, forced = found["skip"], found["forced"]
    gain = skip.prefill_rate / forced.prefill_rate
    lines += ["", f"The skip: {gain:.2f} times the prefill of the forced exchange."]
    return lines


def draw(found: dict[str, Figures], path: Path) -> None:
    """Draw what each gives, as a share of what one stage gives."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = {
        "16 prompts": "prefill_rate",
        "one prompt": "alone_rate",
        "decoding": "decode_rate",
    }
    names = {"one": "one stage", "skip": "two stages", "forced": "exchange forced"}
    colors = {"one": "#9aa0a6", "skip": "#4878a8", "forced": "#f4a340"}
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    for offset, mode in enumerate(MODES):
        heights = [
            getattr(found[mode], field) / getattr(found["one"], field)
            for field in parts.values()
        ]
        places = [place + (offset - 1) * 0.27 for place in range(len(parts))]
        bars = axes.bar(places, heights, 0.25, label=names[mode], color=colors[mode])
        axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set_xticks(range(len(parts)), list(parts))
    axes.set_ylabel("tokens/s, one stage = 1")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG file")
    options = parser.parse_args()
    # As the server has it.
    sys.setswitchinterval(0.0005)
    load = Load(num_prompts=3, stream_tokens=8) if options.quick else Load()
    config = make_config(options.model, options.dtype, load)

    def show(line: str) -> None:
        print(line, flush=True)

    found = trio.run(compare, config, load, options.rounds, show)
    show("\n".join(write_table(found, load)))
    if options.json:
        options.json.write_text(
            json.dumps({mode: asdict(each) for mode, each in found.items()})
        )
    if options.plot:
        draw(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
