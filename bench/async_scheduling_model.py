"""Does a real model on the CPU write faster with two steps in flight?

Question
  On a CPU, the host and the model share the cores. How many tokens a second do clients
  get with one step in flight and with two (--async-scheduling), and how long do they
  wait for the first token and between tokens?

Machine
  Any; run it alone.

How to read the answer
  Two engines with the model take turns, without HTTP. The figures are the tokens a
  second of all clients, and the median milliseconds to the first token and between
  tokens; all are medians of the rounds.

    python bench/async_scheduling_model.py [--rounds 5] [--clients 1 16 64]
        [--json out.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
import statistics
import sys

from kit.options import read_output, read_positive
from kit.process import tell
from kit.rounds import alternate, take_medians
from kit.tables import write_markdown
import trio

import trioserve
from trioserve.config import DEFAULT_MODEL
from trioserve.frontend import TextEngine
from trioserve.programs.bench.measuring.report import save

DEPTHS = (1, 2)

# Number of clients -> depth -> figures.
Found = dict[int, dict[int, dict[str, float]]]


@dataclass(frozen=True)
class ModelFigures:
    tokens_per_second: float
    first_ms: float
    between_ms: float


async def load_model(
    engine: TextEngine, num_clients: int, num_tokens: int, name: str
) -> ModelFigures:
    """Generate for so many clients at once; no prompt is in the prefix cache."""
    firsts: list[float] = []
    gaps: list[float] = []

    async def write(number: int) -> None:
        begin = trio.current_time()
        last = None
        async with engine.open_completion(
            f"{name} {number}: " + "one two three four " * 16,
            max_tokens=num_tokens,
            temperature=0.0,
            ignore_eos=True,
        ) as deltas:
            async for delta in deltas:
                if not delta.token_ids:
                    continue
                now = trio.current_time()
                if last is None:
                    firsts.append(now - begin)
                else:
                    gaps.append((now - last) / len(delta.token_ids))
                last = now

    begin = trio.current_time()
    async with trio.open_nursery() as clients:
        for number in range(num_clients):
            clients.start_soon(write, number)
    seconds = trio.current_time() - begin
    return ModelFigures(
        tokens_per_second=num_clients * num_tokens / seconds,
        first_ms=1000 * statistics.median(firsts),
        between_ms=1000 * statistics.median(gaps),
    )


async def measure(
    model: str, clients: Sequence[int], num_rounds: int, num_tokens: int
) -> Found:
    """Measure both depths in turns with each number of clients."""
    found: Found = {}
    async with AsyncExitStack() as stack:
        engines = {
            depth: await stack.enter_async_context(
                trioserve.open_engine(
                    model, async_scheduling=depth == 2, kv_cache_memory="1GiB"
                )
            )
            for depth in DEPTHS
        }
        for num_clients in clients:
            rounds: dict[int, list[dict[str, float]]] = {depth: [] for depth in DEPTHS}
            # The first round warms up.
            for number in range(num_rounds + 1):
                for depth in alternate(DEPTHS, number):
                    tell(f"{num_clients} clients, round {number}: depth {depth}")
                    name = f"{num_clients} clients, round {number}"
                    figures = await load_model(
                        engines[depth], num_clients, num_tokens, name
                    )
                    if number:
                        rounds[depth].append(asdict(figures))
            found[num_clients] = {d: take_medians(rounds[d]) for d in DEPTHS}
    return found


def build_table(found: Found) -> Iterator[list[str]]:
    """Lay out a row for each number of clients."""
    yield ["clients", "depth 1", "depth 2", "tokens/s, ratio"]
    for num_clients, by_depth in found.items():
        cells = [
            f"{each['tokens_per_second']:.1f}, {each['first_ms']:.0f}, "
            f"{each['between_ms']:.1f}"
            for each in by_depth.values()
        ]
        one, two = (by_depth[depth]["tokens_per_second"] for depth in DEPTHS)
        yield [str(num_clients), *cells, f"{two / one:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=read_positive, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=read_positive, default=48)
    parser.add_argument("--json", type=read_output)
    options = parser.parse_args()
    # The server's switch interval. prepare_interpreter would also stop the collector.
    sys.setswitchinterval(0.0005)
    found = trio.run(
        measure, options.model, options.clients, options.rounds, options.tokens
    )
    print("tokens/s, ms to the first token, ms between tokens")
    print("\n".join(write_markdown(build_table(found))))
    save(options.json, found)


if __name__ == "__main__":
    main()
