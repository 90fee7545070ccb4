"""How do a long prompt and a request with many prompts slow down another stream?

Question
  A step for 512 tokens of a prompt, after 7,000 others, takes seconds on a CPU. Streams
  get no token until it is done. --max-step-seconds makes such steps shorter. How long
  are the gaps of a stream then, and how much later does the first token of the long
  prompt come?

Machine
  Any; run it alone. The model is SmolLM2-135M-Instruct, unless --model names another
  one, in an engine process.

How to read it
  alone       gaps of a stream without other requests.
  long        its gaps beside a prompt of 8,000 tokens. `first` is the time to the first
              token of that prompt. `short` is the time to the first token of a short
              prompt, which is sent after a third of `first`.
  many        its gaps beside a request of 127 prompts of 64 tokens, which write 32
              tokens each. `all` is the time until the last of them is done.
  Seconds; medians of the rounds. In each round all settings take turns, in a new order.

    python bench/fairness.py [--settings inf 0.25] [--rounds 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
import random
import statistics

from kit.options import read_positive
from kit.process import tell
from kit.rounds import shuffle, take_medians
from kit.tables import write_markdown
import trio

import trioserve
from trioserve import SamplingParams
from trioserve.config import DEFAULT_MODEL
from trioserve.engine.generation.engine import TokenEngine
from trioserve.programs.bench.measuring.texts import open_chance
from trioserve.types.prompt import Prompt

NUM_MANY = 127
MANY_TOKENS = 32

# The time for which the stream is measured without other requests.
ALONE_SECONDS = 3.0

Figures = dict[str, float]


class Asker:
    """Sends prompts to an engine; each prompt has new random tokens."""

    def __init__(self, engine: TokenEngine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance

    def make_prompt(self, num_tokens: int) -> Prompt:
        # Ids below 1000 may be special tokens.
        return Prompt(
            token_ids=tuple(
                self._chance.randrange(1000, self._engine.info.vocab_size)
                for _ in range(num_tokens)
            )
        )

    async def ask(self, prompts: Sequence[Prompt], max_tokens: int) -> list[float]:
        """Return the arrival of each output, in seconds since the request."""
        begin = trio.current_time()
        times = []
        sampling = SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True
        )
        async with self._engine.open_stream(prompts, sampling) as deltas:
            async for _ in deltas:
                times.append(trio.current_time() - begin)
        return times


class Stream:
    """A stream that goes on until it is cancelled."""

    def __init__(self, asker: Asker, engine: TokenEngine) -> None:
        self._engine = engine
        self._prompt = asker.make_prompt(16)
        self._times: list[float] = []

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        async with self._engine.open_stream([self._prompt], sampling) as deltas:
            async for _ in deltas:
                self._times.append(trio.current_time())
                if len(self._times) == 1:
                    task_status.started()

    def reset(self) -> None:
        del self._times[:-1]

    def read(self, name: str) -> Figures:
        """Return the gaps since the last reset."""
        gaps = [after - before for before, after in zip(self._times, self._times[1:])]
        return {f"{name} median": statistics.median(gaps), f"{name} longest": max(gaps)}


async def open_and_measure(
    setting: str, model: str, seed: int, long_tokens: int
) -> Figures:
    """Open an engine with a setting, and return its figures."""
    options = {} if setting == "none" else {"max_step_seconds": float(setting)}
    async with trioserve.open_engine(model, process=True, **options) as engine:
        return await measure(engine.engine, seed, long_tokens)


async def measure(engine: TokenEngine, seed: int, long_tokens: int) -> Figures:
    """Return the figures of an engine that runs."""
    asker = Asker(engine, open_chance(seed))
    async with trio.open_nursery() as nursery:
        stream = Stream(asker, engine)
        await nursery.start(stream.run)
        stream.reset()
        await trio.sleep(ALONE_SECONDS)
        figures = stream.read("alone")
        figures |= await measure_long(asker, stream, long_tokens)
        stream.reset()
        prompts = [asker.make_prompt(64) for _ in range(NUM_MANY)]
        figures["many all"] = (await asker.ask(prompts, MANY_TOKENS))[-1]
        figures |= stream.read("many")
        nursery.cancel_scope.cancel()
    return figures


async def measure_long(asker: Asker, stream: Stream, num_tokens: int) -> Figures:
    """Return the figures beside a long prompt, which is sent twice.

    The first time gives the gaps, and the time to its first token. The second time, a
    short prompt follows after a third of that time.
    """
    stream.reset()
    [first] = await asker.ask([asker.make_prompt(num_tokens)], 1)
    figures = stream.read("long") | {"long first": first}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask, [asker.make_prompt(num_tokens)], 1)
        await trio.sleep(first / 3)
        [figures["long short"]] = await asker.ask([asker.make_prompt(32)], 1)
    return figures


def build_table(rounds: dict[str, list[Figures]]) -> Iterator[list[str]]:
    """Lay out a row for each figure, and a column for each setting."""
    medians = {setting: take_medians(figures) for setting, figures in rounds.items()}
    yield ["", *rounds]
    for name in next(iter(medians.values())):
        yield [name, *(f"{figures[name]:.3f}" for figures in medians.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument(
        "--settings",
        nargs="+",
        default=["inf", "0.25"],
        help="values of --max-step-seconds; none is the engine's default",
    )
    parser.add_argument("--rounds", type=read_positive, default=3)
    parser.add_argument("--long-tokens", type=read_positive, default=8000)
    options = parser.parse_args()
    rounds: dict[str, list[Figures]] = {setting: [] for setting in options.settings}
    for number, setting in shuffle(options.settings, options.rounds):
        figures = trio.run(
            open_and_measure, setting, options.model, number, options.long_tokens
        )
        rounds[setting].append(figures)
        tell(f"{setting}: { {name: round(each, 3) for name, each in figures.items()} }")
    print("\n".join(write_markdown(build_table(rounds))))


if __name__ == "__main__":
    main()
