"""How much slower is a server while another program uses the machine?

Question
  A server's threads have one core each. A neighbour, a process that only computes, takes
  a share of one of them. If the threads waited for each other after each product, a step
  would take as long as the slowest thread. How much longer is the time between two tokens
  with a neighbour than without one?

      python bench/neighbour.py
      python bench/neighbour.py --model FILE.gguf --clients 1 16 --rounds 5

Machine
  Linux; run it alone. The neighbour is a Python loop of the same priority.

How to read the answer
  alone, beside  milliseconds between two tokens of a stream (TPOT of bench/serving.py):
                 the median of all streams of a round, and of these the median of the
                 rounds.
  ratio          the median of the rounds' ratios, with the least and the largest. On two
                 cores a perfect division of the machine would give 4/3, because the
                 neighbour has a half of one core; 2 if the server waits for the slower
                 core. The measurements with and without a neighbour take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
import statistics
import sys

from kit.options import read_positive
from kit.process import open_process, stopping_at_sigterm, tell
from kit.rounds import alternate, describe_ratios, list_ratios
from kit.server import open_server, write_serve_command
from kit.tables import write_markdown
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.generation.load import (
    Dialect,
    Load,
    issue_bodies,
    learn_dialect,
)
from trioserve.programs.bench.generation.measure import run_round, warm_up
from trioserve.programs.bench.measuring.measured_servers import Server
from trioserve.programs.bench.measuring.report import describe_machine
from trioserve.programs.bench.measuring.table import write_milliseconds

# Each mode opens another load of the machine.
MODES: dict[str, Callable[[], AbstractAsyncContextManager[object]]] = {
    "alone": nullcontext,
    "beside": partial(open_process, (sys.executable, "-c", "while True: pass")),
}

# (clients, mode) -> seconds between two tokens, of each round.
Paces = Mapping[tuple[int, str], Sequence[float]]


async def measure(load: Load, command: Sequence[str]) -> Paces:
    """Measure one server with and without a neighbour in turns."""
    modes = list(MODES)
    paces: dict[tuple[int, str], list[float]] = {}
    async with stopping_at_sigterm(), open_server(command) as running:
        server = Server(label="trioserve", url=running.url)
        dialect = await learn_dialect(server, load)
        await warm_up(server, dialect, load)
        for clients in load.concurrency:
            for number in range(load.rounds):
                for mode in alternate(modes, number):
                    tell(f"{clients} clients, round {number + 1}: {mode}")
                    prompts = (clients, number, mode)
                    async with MODES[mode]():
                        pace = await measure_pace(
                            server, dialect, load, clients, prompts
                        )
                    paces.setdefault((clients, mode), []).append(pace)
    return paces


async def measure_pace(
    server: Server,
    dialect: Dialect,
    load: Load,
    clients: int,
    prompts: tuple[object, ...],
) -> float:
    """Let clients send their requests; return the median time between two tokens.

    Args:
      prompts: chooses the prompts.
    """
    bodies = issue_bodies(load, dialect, clients, *prompts)
    seen = await run_round(server, dialect, load, bodies, clients)
    return statistics.median(
        pace for answer in seen.answers for pace in answer.list_paces()
    )


def build_table(paces: Paces) -> Iterator[list[str]]:
    """Lay out a row for each number of clients."""
    yield ["clients", "alone, ms", "beside, ms", "ratio"]
    for clients in dict.fromkeys(clients for clients, _ in paces):
        alone, beside = (paces[clients, mode] for mode in MODES)
        yield [
            str(clients),
            write_milliseconds(statistics.median(alone)),
            write_milliseconds(statistics.median(beside)),
            describe_ratios(list_ratios(beside, alone)),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL)
    add("--clients", type=read_positive, nargs="+", default=[1, 16])
    add("--rounds", type=read_positive, default=4)
    options = parser.parse_args()
    load = Load(
        concurrency=tuple(options.clients), requests_per_client=1, rounds=options.rounds
    )
    machine = describe_machine()
    paces = trio.run(measure, load, write_serve_command(options.model))
    print("\n".join(write_markdown(build_table(paces))))
    print(f"{machine}; {options.model}; medians of {options.rounds} rounds")


if __name__ == "__main__":
    main()
