"""What do a long prompt and a request with many prompts do to somebody else's stream?

Question
  A step with 512 tokens behind 7,000 others takes seconds on a CPU, and streams have no
  token until it is done. With --max-step-seconds such steps are cut short. How long are a
  stream's gaps then, and how much later does the long prompt have its first token?

Machine
  Any; SmolLM2-135M-Instruct unless told otherwise, in an engine process.

How to read it
  alone       gaps of a stream that has the server for itself.
  long        the same beside a prompt of 8,000 tokens: its first token came after `first`,
              and that of a short prompt, which came when a third of the long one's time was
              over, after `short`.
  many        the same beside a request of 127 prompts of 64 tokens, which write 32 each and
              take `all` until the last is done.
  Seconds; medians of the rounds. In each round all settings take turns, in another order.

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
from kit.table import write_markdown
from kit.texts import open_chance
import trio

import trioserve
from trioserve import SamplingParams
from trioserve.config import DEFAULT_MODEL
from trioserve.engine import TokenEngine
from trioserve.types.prompt import Prompt

NUM_MANY = 127
MANY_TOKENS = 32

# How long a stream is watched that has the server for itself.
ALONE_SECONDS = 3.0

Figures = dict[str, float]


class Asker:
    """Asks an engine; every prompt is made of fresh tokens."""

    def __init__(self, engine: TokenEngine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance

    def make_prompt(self, num_tokens: int) -> Prompt:
        # Below them are special ones.
        return Prompt(
            token_ids=tuple(
                self._chance.randrange(1000, self._engine.info.vocab_size)
                for _ in range(num_tokens)
            )
        )

    async def ask(self, prompts: Sequence[Prompt], max_tokens: int) -> list[float]:
        """Return when tokens came, in seconds since the question."""
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
    """A stream that goes on until it is left."""

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

    Once for the gaps and the time that it takes. Once more for the short prompt, which
    comes when a third of that time is over.
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
        help="of --max-step-seconds; none leaves it to the server",
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
