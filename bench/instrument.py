"""How much does LoopStall cost, which is always on in a server?

Question
  The worst case is a program that does nothing but task steps. How much CPU time does
  LoopStall add to each of its steps? How much of that does trio take to call any two
  hooks? And how much does LoopStall add to each chunk that a server streams?

Machine
  Any; two cores are better, because the server's clients are a process of their own.
  All figures are CPU time, in which waiting does not count.

How to read the answer
  adds           the median of the rounds' differences to the same program without an
                 instrument ("bare").
  empty hooks    an instrument that does nothing, before and after each step.
  tasks          with one task each step is also a turn of the loop; with 100 tasks a
                 turn has 100 steps.
  a chunk        of the real server, whose device costs nothing (kit/chunk_server.py).
                 With a model each chunk costs more, and the share is smaller.
  Programs take turns, in reversed order every other round.

    python bench/instrument.py [--rounds 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
import statistics
import sys
import time

from kit.chunk_server import MAX_STREAMS, open_chunk_server, read_streams
from kit.options import read_positive
from kit.rounds import alternate, take_turns
import trio

from trioserve.observe import LoopStall

STEPS_PER_ROUND = 100_000
CHUNKS_PER_STREAM = 500
CHUNKS_PER_ROUND = MAX_STREAMS * CHUNKS_PER_STREAM


class EmptyHooks(trio.abc.Instrument):
    """Hooks that do nothing; they cost the time that trio takes to call them."""

    __slots__ = ()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        pass

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        pass


def measure_steps(num_tasks: int, num_steps: int, num_rounds: int) -> list[str]:
    """Measure a program of task steps, and report it."""
    instruments: dict[str, Callable[[], list[trio.abc.Instrument]]] = {
        "bare": lambda: [],
        "empty hooks": lambda: [EmptyHooks()],
        "LoopStall": lambda: [LoopStall()],
    }

    def call(name: str) -> float:
        made = instruments[name]()
        return trio.run(run_steps, num_tasks, num_steps, instruments=made) / num_steps

    calls = {name: lambda name=name: call(name) for name in instruments}
    return report(f"tasks: {num_tasks}, a step", take_turns(num_rounds, calls))


async def run_steps(num_tasks: int, num_steps: int) -> float:
    """Return the CPU seconds of tasks that only yield to each other."""

    async def step() -> None:
        for _ in range(num_steps // num_tasks):
            await trio.lowlevel.cancel_shielded_checkpoint()

    start = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(num_tasks):
            nursery.start_soon(step)
    return time.process_time() - start


async def measure_chunks(num_rounds: int) -> list[str]:
    """Measure a server that streams, and report it."""
    costs: dict[str, list[float]] = {"bare": [], "LoopStall": []}
    async with open_chunk_server(CHUNKS_PER_STREAM) as server:
        await stream_chunks(server.port)
        for number in range(num_rounds):
            for name in alternate(list(costs), number):
                stall = LoopStall()
                if name == "LoopStall":
                    trio.lowlevel.add_instrument(stall)
                costs[name].append(await stream_chunks(server.port))
                if name == "LoopStall":
                    trio.lowlevel.remove_instrument(stall)
                    last = stall
    num_steps = last.statistics().steps.num_durations
    return [
        *report("server, a chunk", costs),
        f"server, task steps for a chunk: {num_steps / CHUNKS_PER_ROUND:.2f}",
        f"server, the last round: {last.describe()}",
    ]


async def stream_chunks(port: int) -> float:
    """Return this process's CPU seconds for a chunk, without the clients' seconds."""
    start = time.process_time()
    await trio.run_process([sys.executable, __file__, "--read", str(port)])
    return (time.process_time() - start) / CHUNKS_PER_ROUND


def report(title: str, costs: Mapping[str, Sequence[float]]) -> list[str]:
    """Write a line for the program without instruments, and one for each instrument."""
    bare = costs["bare"]
    lines = [f"{title}, bare: {statistics.median(bare) * 1e6:.2f} us"]
    for name, values in costs.items():
        if name != "bare":
            added = statistics.median(b - a for a, b in zip(bare, values))
            share = added / statistics.median(bare)
            lines.append(f"{title}, {name} adds: {added * 1e6:.2f} us ({share:.0%})")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=15)
    # For the process with the clients, which this file starts itself.
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read is not None:
        trio.run(
            read_streams, options.read, "completions", MAX_STREAMS, CHUNKS_PER_STREAM
        )
        return
    for num_tasks in (1, 100):
        print(*measure_steps(num_tasks, STEPS_PER_ROUND, options.rounds), sep="\n")
    print(*trio.run(measure_chunks, options.rounds), sep="\n")


if __name__ == "__main__":
    main()
