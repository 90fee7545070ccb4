"""What does LoopStall cost, so that a server may keep it on for good?

Question: what does it add to each task step of a program that does nothing but task
steps, which is the worst there is? How much of that is trio's price for calling any two
hooks? And what does it add to each chunk that a server streams?

Machine: any; the server's clients are a process of their own, so two cores are better.
All of it is CPU time, so that waiting does not count. The server is the real one but for
its device, which costs nothing: with a model each chunk costs more and the share is less.

How to read it: programs take turns, in reversed order every other round, and the figures
are medians. "adds" is the median of the rounds' differences to the same program without
an instrument; "empty hooks" is an instrument that does nothing, before and after each
step. One task makes a turn of the loop of each step; with 100 tasks a turn has 100.

    python bench/instrument.py [--rounds 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
from pathlib import Path
import statistics
import sys
from tempfile import TemporaryDirectory
import time

import trio

from trioserve.observe import LoopStall
from trioserve.testing_server import FakeServer, open_fake_server
from trioserve.testing_tokenizer import tiny_tokenizer

STEPS_PER_ROUND = 100_000
NUM_STREAMS = 32
CHUNKS_PER_STREAM = 500


class EmptyHooks(trio.abc.Instrument):
    """What trio's calls cost without anything in them."""

    __slots__ = ()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        pass

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        pass


def compare_steps(num_tasks: int, rounds: int) -> None:
    kinds: dict[str, Callable[[], list[trio.abc.Instrument]]] = {
        "bare": lambda: [],
        "empty hooks": lambda: [EmptyHooks()],
        "LoopStall": lambda: [LoopStall()],
    }
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name in alternate(list(kinds), number):
            seconds = trio.run(run_steps, num_tasks, instruments=kinds[name]())
            costs[name].append(seconds / STEPS_PER_ROUND)
    report(f"tasks: {num_tasks}, a step", costs)


async def run_steps(num_tasks: int) -> float:
    """Return the CPU seconds of so many tasks that only let each other run."""

    async def step() -> None:
        for _ in range(STEPS_PER_ROUND // num_tasks):
            await trio.lowlevel.cancel_shielded_checkpoint()

    start = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(num_tasks):
            nursery.start_soon(step)
    return time.process_time() - start


async def compare_chunks(rounds: int) -> None:
    costs: dict[str, list[float]] = {"bare": [], "LoopStall": []}
    num_steps = []
    with TemporaryDirectory() as folder:
        async with open_fake_server(
            tiny_tokenizer(Path(folder)), max_model_len=2 * CHUNKS_PER_STREAM
        ) as server:
            await stream_chunks(server)
            for number in range(rounds):
                for name in alternate(list(costs), number):
                    if name == "bare":
                        costs[name].append(await stream_chunks(server))
                    else:
                        seconds, stall = await stream_chunks_watched(server)
                        costs[name].append(seconds)
                        num_steps.append(stall.statistics().steps.num_durations)
    report("server, a chunk", costs)
    steps_per_chunk = statistics.median(num_steps) / (NUM_STREAMS * CHUNKS_PER_STREAM)
    print(f"server, task steps for a chunk: {steps_per_chunk:.2f}")
    print(f"server, the last round: {stall.describe()}")


async def stream_chunks_watched(server: FakeServer) -> tuple[float, LoopStall]:
    stall = LoopStall()
    trio.lowlevel.add_instrument(stall)
    seconds = await stream_chunks(server)
    trio.lowlevel.remove_instrument(stall)
    return seconds, stall


async def stream_chunks(server: FakeServer) -> float:
    """Return the server's CPU seconds for a chunk, clients aside."""
    start = time.process_time()
    await trio.run_process([sys.executable, __file__, "--read", str(server.port)])
    seconds = time.process_time() - start
    return seconds / (NUM_STREAMS * CHUNKS_PER_STREAM)


async def read_streams(port: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(NUM_STREAMS):
            nursery.start_soon(read_stream, port, number)


async def read_stream(port: int, number: int) -> None:
    body = {
        "prompt": f"Stream {number}",
        "max_tokens": CHUNKS_PER_STREAM,
        "ignore_eos": True,
        "stream": True,
    }
    content = json.dumps(body).encode()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        )
        answer = b"".join([part async for part in stream])
    if not answer.startswith(b"HTTP/1.1 200") or b"[DONE]" not in answer:
        raise SystemExit(f"the server did not stream: {answer[:200]!r}")


def alternate(names: list[str], number: int) -> list[str]:
    return names[::-1] if number % 2 else names


def report(title: str, costs: dict[str, list[float]]) -> None:
    bare = costs["bare"]
    print(f"{title}, bare: {statistics.median(bare) * 1e6:.2f} us")
    for name, values in costs.items():
        if name != "bare":
            added = statistics.median(b - a for a, b in zip(bare, values))
            share = added / statistics.median(bare)
            print(f"{title}, {name} adds: {added * 1e6:.2f} us ({share:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    # For the process with the clients, which this file starts itself.
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        trio.run(read_streams, arguments.read)
        return
    for num_tasks in (1, 100):
        compare_steps(num_tasks, arguments.rounds)
    trio.run(compare_chunks, arguments.rounds)


if __name__ == "__main__":
    main()
