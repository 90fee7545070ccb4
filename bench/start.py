"""How long until a server is ready, and how much memory does it take?

Question
  A server with its engine in a process of its own has two interpreters to start and to
  keep in memory. How much longer does it take until it is ready, and how much more
  memory do its processes need,

      inside     with the engine in the server's process (--no-engine-process)
      outside    with the engine in a process of its own (--engine-process)?

  Once with a real model on the CPU, and once with a device that computes nothing.

      python bench/start.py --rounds 3
      python bench/start.py --devices "2 ms" --rounds 1

Machine
  Linux, because memory is read from /proc. Run it alone, and run it twice: the first
  run may fetch and convert the model.

How to read the answer
  start, s       from starting the process until it logs that it is ready.
  memory, MB     of all its processes after a first answer. Each page is divided by the
                 number of processes that share it (PSS).
  server, MB     of the process that answers HTTP alone. Without a model, "start, s" of
                 `outside` is the time that this process needs itself.
  Medians of the rounds; modes take turns, in reversed order every other round.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
import statistics
from tempfile import TemporaryDirectory

from kit.engines.device import DEVICES
from kit.engines.server import MODES, write_command
from kit.options import read_choice, read_positive
from kit.process import stopping_at_sigterm, tell
from kit.raw import ask, write_request
from kit.rounds import alternate
from kit.server import open_server
from kit.tables import write_markdown, write_number
from kit.usage import read_memory, read_own_memory
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.measuring.report import describe_machine
from trioserve.testing.tokenizer import tiny_tokenizer

# One sleeping device is enough: the others start in the same way.
CHOICES = ("model", "2 ms")

# (device, mode) -> (seconds, MB of all processes, MB of the server's) of each round.
Costs = Mapping[tuple[str, str], Sequence[tuple[float, float, float]]]


async def measure(devices: Sequence[str], model: str, num_rounds: int) -> Costs:
    """Start a server of each kind in each round, one at a time."""
    costs: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    async with stopping_at_sigterm():
        with TemporaryDirectory() as folder:
            tokenizer = tiny_tokenizer(Path(folder))
            for name in devices:
                for number in range(num_rounds):
                    for mode in alternate(MODES, number):
                        tell(f"{name}, round {number + 1}: {mode}")
                        command = write_command(DEVICES[name], mode, model, tokenizer)
                        cost = await measure_start(command)
                        costs.setdefault((name, mode), []).append(cost)
    return costs


async def measure_start(command: Sequence[str]) -> tuple[float, float, float]:
    """Start a server; return seconds until it is ready, and MB after an answer.

    Returns:
      The seconds, the memory of all processes, and of the server's own.
    """
    async with open_server(command) as server:
        await ask(
            server.port, write_request("/v1/completions", prompt="One", max_tokens=16)
        )
        pid = server.pid
        return server.start_seconds, read_memory(pid), read_own_memory(pid)


def build_table(costs: Costs) -> Iterator[list[str]]:
    """Lay out a row for each device and mode."""
    yield ["device", "engine", "start, s", "memory, MB", "server, MB"]
    for (device, mode), rounds in sorted(costs.items()):
        medians = map(statistics.median, zip(*rounds))
        yield [device, mode, *map(write_number, medians)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=3)
    parser.add_argument(
        "--devices",
        type=partial(read_choice, known=CHOICES),
        default=CHOICES,
        help=",".join(CHOICES),
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    options = parser.parse_args()
    machine = describe_machine()
    costs = trio.run(measure, options.devices, options.model, options.rounds)
    print("\n".join(write_markdown(build_table(costs))))
    print(f"{machine}; medians of {options.rounds} rounds")


if __name__ == "__main__":
    main()
