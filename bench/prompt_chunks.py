"""How much more does a prompt cost if it is read in smaller chunks?

Question
  Whoever comes while a lone prompt is read waits for the steps in flight. Smaller chunks
  make these steps shorter. Each step has a fixed cost, so they make the prompt dearer: how
  much?

      python bench/prompt_chunks.py
      python bench/prompt_chunks.py --chunks 512 128 --prompt-tokens 3000

Machine
  Any. One thread runs the model, and only its CPU time counts. So other programs matter
  little.

How to read the answer
  chunk    tokens of a step (--max-num-batched-tokens).
  steps    steps of a prompt.
  seconds  CPU seconds of a prompt: the median of the rounds.
  ratio    the median of the rounds' ratios to the first chunk.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import math
import statistics
import time
from typing import NamedTuple

from kit.options import read_positive
from kit.process import tell
from kit.rounds import describe_ratios, list_ratios, shuffle
from kit.tables import write_markdown
import trio

import trioserve
from trioserve import SamplingParams
from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.measuring.texts import open_chance
from trioserve.types.prompt import Prompt


class Cost(NamedTuple):
    """The CPU seconds and the steps of a prompt."""

    seconds: float
    num_steps: int


async def measure(model: str, chunk: int, num_tokens: int, seed: int) -> Cost:
    """Open an engine whose steps have `chunk` tokens, and read a prompt."""
    async with trioserve.open_engine(
        model,
        num_threads=1,
        max_num_seqs=8,
        max_num_batched_tokens=chunk,
        max_step_seconds=math.inf,
    ) as opened:
        engine = opened.engine
        vocabulary = range(1000, engine.info.vocab_size)
        token_ids = open_chance(seed).choices(vocabulary, k=num_tokens)
        begin = time.process_time()
        async with engine.open_stream(
            [Prompt(token_ids=tuple(token_ids))], SamplingParams(max_tokens=1)
        ) as deltas:
            async for _ in deltas:
                pass
        return Cost(time.process_time() - begin, engine.counters().num_steps)


def build_table(costs: dict[int, list[Cost]]) -> Iterator[list[str]]:
    """Lay out a row for each chunk."""
    yield ["chunk", "steps", "seconds", "ratio"]
    first = [cost.seconds for cost in next(iter(costs.values()))]
    for chunk, found in costs.items():
        seconds = [cost.seconds for cost in found]
        yield [
            str(chunk),
            str(found[0].num_steps),
            f"{statistics.median(seconds):.2f}",
            describe_ratios(list_ratios(seconds, first)),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompt-tokens", type=read_positive, default=3000)
    parser.add_argument("--rounds", type=read_positive, default=3)
    parser.add_argument(
        "--chunks", nargs="+", type=read_positive, default=[512, 2048, 128, 64, 16]
    )
    options = parser.parse_args()
    costs: dict[int, list[Cost]] = {chunk: [] for chunk in options.chunks}
    for number, chunk in shuffle(options.chunks, options.rounds):
        cost = trio.run(measure, options.model, chunk, options.prompt_tokens, number)
        costs[chunk].append(cost)
        tell(f"{chunk}: {cost}")
    print("\n".join(write_markdown(build_table(costs))))


if __name__ == "__main__":
    main()
