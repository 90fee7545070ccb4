"""How much CPU time does a streamed chunk cost a server, also of another checkout?

Question
  A token goes from the engine's step through text, JSON and HTTP to a socket. How much
  CPU time does the server's thread take for that, for each streamed chunk? With
  --against PATH: how much does the code of another checkout take?

      python bench/chunk_cost.py
      python bench/chunk_cost.py --against ../before --rounds 15

Machine
  Any; two cores are better, because the clients are a process of their own. Run it
  alone: only CPU time is measured, but a busy machine adds a little to that, too.

How to read the answer
  us a chunk     CPU time of the server's thread over the chunks that it sent: the
                 median of the rounds, with the least and the largest. A chunk has several
                 tokens where the server is late. A chat's first chunk, which has its role,
                 counts as well.
  ratio          this checkout over the other one: the median of the rounds' ratios.
                 Less than 1 means that this checkout is cheaper.

  Both servers run at once and take turns, in reversed order every other round; an idle
  server costs nothing. The device costs nothing either (kit/chunk_server.py). With a
  model each chunk costs more, and a difference is a smaller share.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
import statistics
import sys
import time

from kit.chunk_server import MAX_STREAMS, Endpoint, open_chunk_server, read_streams
from kit.options import read_positive
from kit.process import BENCH_FOLDER, Child, find_on_path, open_child, open_stdin, tell
from kit.rounds import alternate, describe_ratios, list_ratios
import trio

THIS = "this checkout"
OTHER = "the other checkout"

# Name of a checkout -> CPU seconds a chunk, by round.
Costs = dict[str, list[float]]


async def serve(folder: Path, chunks_per_stream: int) -> None:
    """Serve; print the port, then this thread's CPU seconds for each line of input."""
    import trioserve

    assert Path(trioserve.__file__).is_relative_to(folder), "this is the checkout meant"
    async with open_chunk_server(chunks_per_stream) as server:
        print(server.port, flush=True)
        lines = open_stdin()
        while await lines.read() is not None:
            # The fake device keeps all plans, which a real one does not.
            server.device.plans.clear()
            print(time.thread_time(), flush=True)


async def measure(
    checkouts: Mapping[str, Path],
    endpoint: Endpoint,
    num_streams: int,
    chunks_per_stream: int,
    num_rounds: int,
) -> Costs:
    """Measure the servers of all checkouts in turns."""
    costs: Costs = {name: [] for name in checkouts}
    command = [sys.executable, __file__, "--chunks", str(chunks_per_stream), "--serve"]
    async with AsyncExitStack() as stack:
        servers: dict[str, tuple[Child, int]] = {}
        for name, folder in checkouts.items():
            tell(f"starting a server of {folder}")
            child = await stack.enter_async_context(
                open_child([*command, str(folder)], environment=find_on_path(folder))
            )
            servers[name] = child, int(await child.read())
        # The first round warms up.
        for number in range(num_rounds + 1):
            for name in alternate(list(servers), number):
                child, port = servers[name]
                before = float(await child.ask("cpu"))
                num_sent = await read_streams(
                    port, endpoint, num_streams, chunks_per_stream
                )
                seconds = float(await child.ask("cpu")) - before
                if number:
                    costs[name].append(seconds / num_sent)
    return costs


def report(costs: Costs) -> list[str]:
    """Write a line for each checkout, and one for their ratio."""
    lines = []
    for name, seconds in costs.items():
        low, median, high = (
            1e6 * each
            for each in (min(seconds), statistics.median(seconds), max(seconds))
        )
        lines.append(f"{name}: {median:.1f} us a chunk ({low:.1f} to {high:.1f})")
    if OTHER in costs:
        ratios = list_ratios(costs[THIS], costs[OTHER])
        lines.append(f"ratio: {describe_ratios(ratios)}")
    return lines


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="another checkout of trioserve"
    )
    parser.add_argument("--rounds", type=read_positive, default=15)
    parser.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions"
    )
    parser.add_argument(
        "--streams", type=read_positive, default=MAX_STREAMS, help="streams at once"
    )
    parser.add_argument(
        "--chunks", type=read_positive, default=500, help="chunks of each stream"
    )
    # For the servers that this file starts itself.
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.serve is not None:
        trio.run(serve, options.serve, options.chunks)
        return
    if options.streams > MAX_STREAMS:
        parser.error(f"--streams is at most {MAX_STREAMS}")
    checkouts = {THIS: BENCH_FOLDER.parent}
    if options.against is not None:
        if not (options.against / "trioserve").is_dir():
            parser.error(f"--against: {options.against} has no folder trioserve")
        checkouts[OTHER] = options.against.resolve()
    costs = trio.run(
        measure,
        checkouts,
        options.endpoint,
        options.streams,
        options.chunks,
        options.rounds,
    )
    print("\n".join(report(costs)))


if __name__ == "__main__":
    main()
