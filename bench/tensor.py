"""How much faster are two shards than one process?

Question
  Two processes share every layer (--tensor-parallel-size 2) and add up what they compute
  twice a layer. How much sooner do they give a first token, and how much faster do they
  write, than one process?

Machine
  Two cores or more; run it alone. Each process computes in one thread, so two shards have
  twice the cores of one. On a machine with two cores, the bench and the engine take their
  time from the second shard.

How to read it
  one    the whole model in the bench's own process.
  two    two shards in processes of their own.
  first_ms   milliseconds to the first token of one long prompt, alone.
  single     tokens per second of one stream.
  many       tokens per second of all streams, after each has its first token.
  Both take turns in each round, in a changing order, after a round to warm up, with new
  prompts. Figures are medians of the rounds. A ratio is the median of the rounds' ratios,
  with the least and the largest.

    python bench/tensor.py [--dtype float32] [--kernels native] [--rounds 5] [--quick]
        [--json tensor.json]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from kit.options import make_parser, read_output, read_positive
from kit.process import tell
from kit.rounds import describe_ratios, list_ratios, shuffle, take_medians
from kit.tables import write_markdown
from pipeline import SHORT_PROMPT, make_prompts, stream_all
import trio

from trioserve.config import DEFAULT_MODEL, EngineConfig, build_config
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.processes.interpreter import prepare_interpreter, settle_interpreter
from trioserve.programs.bench.measuring.report import save
from trioserve.startup.core import open_core

NUM_SHARDS = {"one": 1, "two": 2}

# Name of a figure -> its title.
FIGURES = {
    "first_ms": "ms to the first token",
    "single": "tokens per second, one stream",
    "many": "tokens per second, all streams",
}

Rounds = dict[str, list[dict[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of each turn.

    Attributes:
      prompt_tokens: length of the long prompt.
      num_streams: streams that write at once.
      stream_tokens: tokens of each stream, and of the one that is alone.
    """

    prompt_tokens: int = 1500
    num_streams: int = 16
    stream_tokens: int = 64


QUICK = Load(prompt_tokens=40, num_streams=2, stream_tokens=4)


@asynccontextmanager
async def open_shards(
    model: str, dtype: str, kernels: str, num_shards: int
) -> AsyncIterator[TokenEngine]:
    config = build_config(
        EngineConfig,
        {
            "model": model,
            "dtype": dtype,
            "device": "cpu",
            "num_threads": 1,
            "kernels": kernels,
            "prefix_caching": False,
            "tensor_parallel_size": num_shards,
            "kv_cache_memory": f"{512 // num_shards}MiB",
        },
    )
    async with open_core(config, "generate") as loaded, trio.open_nursery() as nursery:
        assert isinstance(loaded.core, LocalCore), "the model generates"
        engine = TokenEngine(loaded.core, info=loaded.info, max_num_sequences=64)
        await nursery.start(engine.run)
        yield engine
        nursery.cancel_scope.cancel()


async def take_turn(engine: TokenEngine, load: Load, number: int) -> dict[str, float]:
    """Return the figures of one turn."""
    vocab_size = engine.info.vocab_size
    long = make_prompts(number, 1, load.prompt_tokens, vocab_size)
    figures = {"first_ms": 1000 * (await stream_all(engine, long, 1)).firsts[0]}
    for name, count in (("single", 1), ("many", load.num_streams)):
        prompts = make_prompts(number, count, SHORT_PROMPT, vocab_size)
        arrivals = await stream_all(engine, prompts, load.stream_tokens)
        seconds = arrivals.ended - arrivals.began - max(arrivals.firsts)
        figures[name] = arrivals.num_late / seconds
    return figures


async def measure(
    model: str, dtype: str, kernels: str, load: Load, num_rounds: int
) -> Rounds:
    found: Rounds = {name: [] for name in NUM_SHARDS}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(
                open_shards(model, dtype, kernels, num_shards)
            )
            for name, num_shards in NUM_SHARDS.items()
        }
        await settle_interpreter()
        # The first round warms up.
        for number, name in shuffle([*NUM_SHARDS], num_rounds + 1):
            figures = await take_turn(engines[name], load, number)
            if number:
                found[name].append(figures)
                shown = ", ".join(f"{v:.1f} {FIGURES[k]}" for k, v in figures.items())
                tell(f"round {number}, {name}: {shown}")
    return found


def write_report(rounds: Rounds) -> Iterator[str]:
    medians = {name: take_medians(rounds[name]) for name in rounds}
    rows = [["", *rounds, "two / one"]]
    for figure, title in FIGURES.items():
        two, one = ([each[figure] for each in rounds[n]] for n in ("two", "one"))
        numbers = (f"{medians[name][figure]:.1f}" for name in rounds)
        rows.append([title, *numbers, describe_ratios(list_ratios(two, one))])
    yield from write_markdown(rows)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kernels", choices=("native", "torch"), default="native")
    parser.add_argument("--rounds", type=read_positive, default=5)
    parser.add_argument("--quick", action="store_true", help="only check that it runs")
    parser.add_argument("--json", type=read_output, metavar="FILE")
    options = parser.parse_args()
    prepare_interpreter()
    load = QUICK if options.quick else Load()
    num_rounds = 1 if options.quick else options.rounds
    rounds = trio.run(
        *(measure, options.model, options.dtype, options.kernels, load, num_rounds)
    )
    print(
        f"a prompt of {load.prompt_tokens} tokens; 1 and {load.num_streams} streams of "
        f"{load.stream_tokens} tokens; {options.dtype}, {options.kernels} kernels, one "
        "thread a process",
        *write_report(rounds),
        sep="\n",
    )
    save(options.json, {"load": load, "rounds": rounds})


if __name__ == "__main__":
    main()
