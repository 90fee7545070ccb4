"""How much time does a server add to the model's own for one short text?

Question
  One client requests the vector of one text of 12 tokens, again and again. How much of
  the time does the model take, how much does HTTP take, and how much does the rest
  take?

      python bench/pooling_overhead.py
      python bench/pooling_overhead.py --url http://127.0.0.1:8000 --rounds 1

  Without --url the bench starts `trioserve serve` and stops it at the end.

Machine
  Any; the report names it. Run it alone.

How to read the answer
  server         a request for one vector.
  encode         SentenceTransformer.encode of the same text, in a process of its own.
  bare model     transformers' forward pass in that process, without the tokenizer.
  HTTP alone     a request that the server refuses, `{}`: the cost of a socket, HTTP and
                 small JSON.
  the rest       the time of `server` less `bare model` and `HTTP alone`. It is
                 below 0 if the server's own model code is so much faster than
                 transformers'.
  Milliseconds; medians of all requests of all rounds. The four take turns within a
  round, in reversed order every other round, with the same texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
import statistics
from typing import Literal

from kit.embedding.cases import SHORT, Case, Load, build_server_parser, write_texts
from kit.embedding.encoder import (
    Encoder,
    check_installed,
    open_encoder,
    write_encoder_command,
)
from kit.embedding.server import (
    VectorServer,
    ask_nothing,
    learn_server,
    open_servers,
    write_own_command,
)
from kit.options import read_positive
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.rounds import alternate
from kit.runs import run_and_print
import trio

from trioserve.programs.bench.measuring.clients import run_clients
from trioserve.programs.bench.measuring.measured_servers import (
    Server,
    ServerUnusable,
    read_servers,
)
from trioserve.programs.bench.measuring.table import align, write_milliseconds
from trioserve.programs.http.client import RequestFailed

CASE = Case(name="short-1", num_texts=1, lengths=SHORT)

# Name of a measurement -> seconds of each request.
Seconds = dict[str, list[float]]

# Takes the texts of each request, and returns the seconds of each request.
Measure = Callable[[Sequence[list[str]]], Awaitable[list[float]]]


async def measure(
    load: Load,
    servers: Sequence[Server],
    num_requests: int,
    *,
    encoder_command: Sequence[str],
    serve_command: Sequence[str] | None = None,
) -> Seconds:
    """Measure server, encoder, model and HTTP in turns.

    Raises:
      ProcessEnded: one of the two commands failed, or SIGTERM came.
      ServerUnusable: the server cannot be reached.
      RequestFailed: the server refused a request.
    """
    async with (
        stopping_at_sigterm(),
        open_encoder(encoder_command) as encoder,
        open_servers(servers, serve_command) as running,
    ):
        learned = await learn_server(running[0], load)
        return await take_turns(load, encoder, learned, num_requests)


async def take_turns(
    load: Load, encoder: Encoder, server: VectorServer, num_requests: int
) -> Seconds:
    measurements: dict[str, Measure] = {
        "server": partial(time_server, server),
        "encode": partial(time_encoder, encoder, "encode"),
        "bare model": partial(time_encoder, encoder, "forward"),
        "HTTP alone": partial(time_http, server),
    }
    found: Seconds = {name: [] for name in measurements}
    # The first round warms up.
    for number in range(load.rounds + 1):
        requests = [
            write_texts(CASE, encoder.vocabulary, load.seed, number, index)
            for index in range(num_requests)
        ]
        tell(f"round {number} of {load.rounds}" if number else "warming up")
        for name in alternate(list(measurements), number):
            await trio.sleep(load.pause)
            seconds = await measurements[name](requests)
            if number:
                found[name] += seconds
    return found


async def time_encoder(
    encoder: Encoder,
    task: Literal["encode", "forward"],
    requests: Sequence[list[str]],
) -> list[float]:
    return [await encoder.time(task, texts) for texts in requests]


async def time_server(
    server: VectorServer, requests: Sequence[list[str]]
) -> list[float]:
    seen = await server.run(CASE, requests)
    if seen.errors:
        raise RequestFailed(f"the server failed: {dict(seen.errors)}")
    return [each.seconds for each in seen.answers]


async def time_http(server: VectorServer, requests: Sequence[list[str]]) -> list[float]:
    seen = await run_clients(server.url, 1, [b"{}"] * len(requests), ask_nothing)
    if seen.errors:
        raise RequestFailed(f"the server failed: {dict(seen.errors)}")
    return [each.seconds for each in seen.answers]


def build_table(found: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    """Lay out the medians, and the rest of the server's median."""
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    rest = medians["server"] - medians["bare model"] - medians["HTTP alone"]
    yield ["p50 of one text of 12 tokens", "ms"]
    for name, seconds in {**medians, "the rest": rest}.items():
        yield [name, write_milliseconds(seconds)]


def render(found: Mapping[str, Sequence[float]]) -> str:
    return align(list(build_table(found)))


def build_parser() -> argparse.ArgumentParser:
    parser = build_server_parser(__doc__)
    add = parser.add_argument
    add("--requests", type=read_positive, default=200, help="for each round")
    return parser


def gather(options: argparse.Namespace) -> Seconds:
    check_installed()
    load = Load(
        model=options.model, num_threads=options.num_threads, rounds=options.rounds
    )
    servers = read_servers([options.url] if options.url else [])
    return trio.run(
        partial(
            measure,
            load,
            servers,
            options.requests,
            encoder_command=write_encoder_command(load),
            serve_command=None if servers else write_own_command(load),
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    notes = f"{options.model}; {options.rounds} rounds"
    expected = (ValueError, OSError, ProcessEnded, ServerUnusable, RequestFailed)
    return run_and_print(partial(gather, options), render, notes, expected)


if __name__ == "__main__":
    raise SystemExit(main())
