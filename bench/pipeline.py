"""How much faster are two stages than one, and what would it cost to send tokens back?

Question
  The first stage of a pipeline needs the tokens that the last stage samples, but only
  for sequences that decode. Most chunks of long prompts sample nothing, and their steps
  send nothing back (trioserve/types/transfers.py). How much faster do two stages read
  prompts than one? How much of that would be lost if every step sent tokens back? How
  much faster do many streams decode?

Machine
  Two cores or more; run it alone. Each stage computes in one thread, so two stages have
  twice the cores of one.

How to read it
  one      the whole model in the bench's own process.
  two      two stages in processes of their own.
  forced   two stages, but every step sends tokens back, and the first stage waits for
           the tokens of the step before. This would be necessary if a plan did not say which
           steps sample.
  read     all prompts arrive at once and are read in chunks; they share no prefix. Each
           gets one token. Tokens read per second until the last prompt has its token;
           milliseconds to the first token, the median of the prompts.
  write    streams of short prompts: tokens per second after each stream has its first
           token. Every step samples, so `forced` would be the same.
  All three take turns in each round, in a changing order, after a short round to warm
  up. Figures are medians of the rounds. A ratio is the median of the rounds' ratios,
  with the least and the largest. idle: the share of a core that stages take outside
  their turns; it should be 0.

    python bench/pipeline.py [--dtype float32] [--kernels native] [--rounds 5] [--quick]
        [--plot pipeline.png] [--json pipeline.json]
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
import math
from pathlib import Path
import statistics
from typing import TYPE_CHECKING

from kit.options import add_outputs, read_positive
from kit.process import tell
from kit.rounds import describe_ratios, list_ratios, shuffle, take_medians
from kit.tables import write_markdown
import psutil
import trio

from trioserve.config import DEFAULT_MODEL, EngineConfig, build_config
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.executor.pipeline import stages
from trioserve.executor.pipeline.pipeline import open_pipeline
from trioserve.processes.interpreter import prepare_interpreter, settle_interpreter
from trioserve.programs.bench.measuring.plot import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    dress,
    open_figure,
    write_title,
)
from trioserve.programs.bench.measuring.report import save
from trioserve.programs.bench.measuring.texts import open_chance
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.startup.core import open_core
from trioserve.types.model_info import ModelInfo
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIGURATIONS = ("one", "two", "forced")
STAGE_PROCESSES = {"two": stages.STAGE_PROCESS, "forced": "kit.every_step_stage"}
CHUNK_TOKENS = 256
MAX_NUM_SEQS = 64
SHORT_PROMPT = 16
# Enough for all prompts: in float32, SmolLM2-135M has 46 KiB of KV cache for a token.
KV_CACHE_MIB = 1536

# Name of a figure -> its title in tables and plots.
FIGURES = {
    "read": "tokens read per second",
    "first_ms": "ms to the first token",
    "written": "tokens written per second",
}

# Configuration -> its figures, a list for the rounds.
Rounds = dict[str, list[dict[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of each turn.

    Attributes:
      num_prompts, prompt_tokens: the prompts that are read, and the length of each.
      num_streams, stream_tokens: the streams that are written, and the length of each.
    """

    num_prompts: int = 16
    prompt_tokens: int = 1500
    num_streams: int = 64
    stream_tokens: int = 64


QUICK = Load(num_prompts=4, prompt_tokens=400, num_streams=8, stream_tokens=8)
# A chunk of each size, and a step of all streams.
WARM_UP = replace(QUICK, num_prompts=2, num_streams=MAX_NUM_SEQS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A configuration that is ready for its turns.

    Attributes:
      stages: its processes besides this one.
    """

    engine: TokenEngine
    stages: tuple[psutil.Process, ...]

    def cpu_seconds(self) -> float:
        times = [stage.cpu_times() for stage in self.stages]
        return float(sum(each.user + each.system for each in times))


# ---- measurement ---------------------------------------------------------------------


def make_config(model: str, dtype: str, kernels: str, num_stages: int) -> EngineConfig:
    return build_config(
        EngineConfig,
        {
            "model": model,
            "dtype": dtype,
            "device": "cpu",
            "num_threads": 1,
            "kernels": kernels,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": CHUNK_TOKENS,
            "prefix_caching": False,
            # Chunks have the same size in all configurations.
            "max_step_seconds": math.inf,
            "pipeline_parallel_size": num_stages,
            # Each stage keeps the keys and values of its own layers.
            "kv_cache_memory": f"{KV_CACHE_MIB // num_stages}MiB",
        },
    )


@asynccontextmanager
async def open_configuration(
    name: str, model: str, dtype: str, kernels: str
) -> AsyncIterator[Opened]:
    config = make_config(model, dtype, kernels, 1 if name == "one" else 2)
    before = psutil.Process().children()
    async with AsyncExitStack() as stack:
        if name == "one":
            loaded = await stack.enter_async_context(open_core(config, "generate"))
            assert isinstance(loaded.core, LocalCore), "the model generates"
            core, info = loaded.core, loaded.info
        else:
            stages.STAGE_PROCESS = STAGE_PROCESSES[name]
            core, info = await stack.enter_async_context(open_pipeline_core(config))
        engine = TokenEngine(core, info=info, max_num_sequences=1024)
        children = psutil.Process().children()
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            yield Opened(
                engine=engine,
                stages=tuple(each for each in children if each not in before),
            )
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_pipeline_core(
    config: EngineConfig,
) -> AsyncIterator[tuple[LocalCore, ModelInfo]]:
    """Open a core as open_core does, for a pipeline."""
    async with open_pipeline(config) as pipeline:
        room = pipeline.blocks.num_blocks * config.cache.block_size
        info = replace(
            pipeline.info, max_model_len=min(pipeline.info.max_model_len, room)
        )
        executor = await pipeline.connect(config, info.max_model_len)
        scheduler = Scheduler(
            num_blocks=pipeline.blocks.num_blocks,
            block_size=config.cache.block_size,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=CHUNK_TOKENS,
            max_model_len=info.max_model_len,
            prefix_caching=False,
            num_stages=len(pipeline.stages),
        )
        yield LocalCore(scheduler, executor, info=info), info


class Arrivals:
    """The arrival of tokens of streams that are opened together."""

    def __init__(self, num_streams: int) -> None:
        self.began = trio.current_time()
        self.firsts: list[float] = []
        self.ended = self.began
        self._num_streams = num_streams
        # Tokens that came after every stream had its first one.
        self.num_late = 0

    def take(self, *, is_first: bool, num_tokens: int) -> None:
        self.ended = trio.current_time()
        if is_first:
            self.firsts.append(self.ended - self.began)
        elif len(self.firsts) == self._num_streams:
            self.num_late += num_tokens


async def stream_all(
    engine: TokenEngine, prompts: Sequence[Prompt], num_tokens: int
) -> Arrivals:
    """Send all prompts at once, and read so many tokens for each."""
    arrivals = Arrivals(len(prompts))
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)

    async def read(prompt: Prompt) -> None:
        is_first = True
        async with engine.open_stream([prompt], sampling) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    arrivals.take(is_first=is_first, num_tokens=len(delta.token_ids))
                    is_first = False

    async with trio.open_nursery() as readers:
        for prompt in prompts:
            readers.start_soon(read, prompt)
    return arrivals


def make_prompts(
    number: int, count: int, length: int, vocab_size: int
) -> tuple[Prompt, ...]:
    chance = open_chance(number)
    return tuple(
        Prompt(token_ids=tuple(chance.choices(range(vocab_size), k=length)))
        for _ in range(count)
    )


async def take_turn(
    opened: Opened, name: str, load: Load, number: int
) -> dict[str, float]:
    """Return a configuration's figures in one round."""
    engine = opened.engine
    vocab_size = engine.info.vocab_size
    prompts = make_prompts(number, load.num_prompts, load.prompt_tokens, vocab_size)
    arrivals = await stream_all(engine, prompts, 1)
    figures = {
        "read": load.num_prompts * load.prompt_tokens / max(arrivals.firsts),
        "first_ms": 1000 * statistics.median(arrivals.firsts),
    }
    if name != "forced":
        prompts = make_prompts(number, load.num_streams, SHORT_PROMPT, vocab_size)
        arrivals = await stream_all(engine, prompts, load.stream_tokens)
        seconds = arrivals.ended - arrivals.began - max(arrivals.firsts)
        figures["written"] = arrivals.num_late / seconds
    assert engine.counters().num_preemptions == 0, "there is memory for all"
    return figures


async def measure(
    model: str, dtype: str, kernels: str, load: Load, num_rounds: int
) -> tuple[Rounds, float]:
    """Return the rounds, and the share of a core that idle stages take."""
    found: Rounds = {name: [] for name in CONFIGURATIONS}
    idle: list[float] = []
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(
                open_configuration(name, model, dtype, kernels)
            )
            for name in CONFIGURATIONS
        }
        await settle_interpreter()
        # The first round warms up.
        for number, name in shuffle(CONFIGURATIONS, num_rounds + 1):
            others = [each for key, each in opened.items() if key != name]
            began = trio.current_time()
            spent = sum(each.cpu_seconds() for each in others)
            turn = load if number else WARM_UP
            figures = await take_turn(opened[name], name, turn, number)
            spent = sum(each.cpu_seconds() for each in others) - spent
            if number:
                found[name].append(figures)
                idle.append(spent / (trio.current_time() - began))
                tell(f"round {number}, {name}: {describe_figures(figures)}")
    return found, statistics.median(idle)


# ---- report --------------------------------------------------------------------------


def describe_figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{value:.1f} {FIGURES[key]}" for key, value in figures.items())


def write_table(rounds: Rounds) -> Iterator[str]:
    medians = {name: take_medians(rounds[name]) for name in CONFIGURATIONS}
    rows = [["", *CONFIGURATIONS]]
    for figure, meaning in FIGURES.items():
        seen = [medians[name].get(figure) for name in CONFIGURATIONS]
        rows.append(
            [meaning, *("" if each is None else f"{each:.1f}" for each in seen)]
        )
    yield from write_markdown(rows)


def write_ratios(rounds: Rounds) -> Iterator[str]:
    for name, other, figure in (
        ("two", "one", "read"),
        ("forced", "one", "read"),
        ("two", "forced", "read"),
        ("two", "one", "first_ms"),
        ("two", "one", "written"),
    ):
        ratios = list_ratios(
            (each[figure] for each in rounds[name]),
            (each[figure] for each in rounds[other]),
        )
        yield f"{FIGURES[figure]}, {name} / {other}: {describe_ratios(ratios)}"


COLORS = {"one": BLUE, "two": GREEN, "forced": VERMILION}
LABELS = {
    "one": "1 stage",
    "two": "2 stages",
    "forced": "2 stages,\ntokens always back",
}


def save_plot(rounds: Rounds, title: str, path: Path) -> None:
    """Draw a panel for each figure, into a PNG file; the points are the rounds."""
    with open_figure(path, (11.5, 4.2)) as figure:
        for axes, key in zip(figure.subplots(1, len(FIGURES)), FIGURES):
            dress(axes, FIGURES[key])
            draw_figure(axes, rounds, key)
        write_title(figure, title)


def draw_figure(axes: Axes, rounds: Rounds, key: str) -> None:
    names = [name for name in CONFIGURATIONS if key in rounds[name][0]]
    for place, name in enumerate(names):
        median = take_medians(rounds[name])[key]
        axes.bar(place, median, width=0.6, color=COLORS[name], alpha=0.85)
        axes.annotate(
            f"{median:.0f}",
            (place, median / 2),
            ha="center",
            color="white",
            fontweight="bold",
        )
        values = [each[key] for each in rounds[name]]
        axes.plot([place] * len(values), values, "o", color=INK, markersize=3)
    axes.set_xticks(range(len(names)), [LABELS[name] for name in names])


def describe_load(load: Load, dtype: str, kernels: str) -> str:
    return (
        f"{load.num_prompts} prompts of {load.prompt_tokens} tokens in chunks of "
        f"{CHUNK_TOKENS}; {load.num_streams} streams of {load.stream_tokens} tokens; "
        f"{dtype}, {kernels} kernels, one thread a stage"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="float32", help="auto is the model's own")
    parser.add_argument("--kernels", choices=("native", "torch"), default="native")
    parser.add_argument("--rounds", type=read_positive, default=5)
    parser.add_argument("--quick", action="store_true", help="only check that it runs")
    add_outputs(parser)
    options = parser.parse_args()
    prepare_interpreter()
    load = QUICK if options.quick else Load()
    num_rounds = 1 if options.quick else options.rounds
    chosen = options.dtype, options.kernels
    rounds, idle = trio.run(measure, options.model, *chosen, load, num_rounds)
    title = describe_load(load, *chosen)
    print(title, *write_table(rounds), *write_ratios(rounds), sep="\n")
    print(f"idle: {100 * idle:.1f} % of a core")
    save(options.json, {"load": load, "rounds": rounds})
    if options.plot is not None:
        save_plot(rounds, title, options.plot)


if __name__ == "__main__":
    main()
