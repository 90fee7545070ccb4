"""What does structured output cost?

Question
  Clients stream answers without end: free ones, and lists of objects by a JSON schema. How
  many tokens a second does the server write of each? What happens to /health? How long
  does one client wait for the first token with a schema of 10, 100 and 1,000 fields, when
  the server sees it for the first time and when it knows it?

      python bench/structured.py
      python bench/structured.py --model FILE.gguf --clients 16 --rounds 5

  With --hostile: one client streams a free answer. What does it notice of another client's
  24 sequences, if these are free, have a usual schema, or have a grammar whose masks take
  14 ms each?

      python bench/structured.py --hostile

Machine
  Linux; run it alone.

How to read the answer
  free, schema   tokens per second of all clients: the median of the rounds. Both modes have
                 as many tokens, because the list of the schema is longer than an answer.
  ratio          the median of the rounds' ratios (schema / free), with the least and the
                 largest. The modes take turns, with fresh prompts in each round.
  first token    milliseconds: `none` without a schema; `new` with a schema that the server
                 has not seen; `known` with one that it has. The fields are strings, all
                 required. The prompt is one word, and the answer one token.
  between tokens milliseconds between two tokens of the free answer, while the other client's
                 request runs: the median, the 95th percentile and the longest.
  lasts          how long that request ran, in seconds: until the free answer was written, or
                 until the server ended it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import math
import statistics

from kit.options import read_positive
from kit.process import stopping_at_sigterm, tell
from kit.rounds import alternate, describe_ratios, list_ratios
from kit.server import open_server, write_serve_command
from kit.tables import write_markdown, write_number
import msgspec
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.programs.bench.generation.answers import stream_answer
from trioserve.programs.bench.generation.load import Dialect, Load, learn_dialect
from trioserve.programs.bench.generation.measure import run_round, warm_up
from trioserve.programs.bench.measuring.measured_servers import Server
from trioserve.programs.bench.measuring.report import describe_machine
from trioserve.programs.bench.measuring.table import write_milliseconds
from trioserve.programs.http.client import Connection, RequestFailed

MODES = ("free", "schema")
FIELDS = (10, 100, 1000)

# Longer than any answer here.
ENDLESS: dict[str, object] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "color": {"enum": ["red", "green", "blue"]},
        },
        "required": ["name", "age", "color"],
        "additionalProperties": False,
    },
}


# A text of n characters has a number of derivations that grows faster than 4 ** n.
AMBIGUOUS = 'start: a\na: a a | /[a-z ]/ | /[a-z]+/ | ""'

# The other client's request.
NEIGHBOURS: dict[str, dict[str, object] | None] = {
    "nobody": None,
    "free": {"ignore_eos": True},
    "schema": {"guided_json": ENDLESS},
    "hostile": {"guided_grammar": AMBIGUOUS},
}


@dataclass(slots=True, kw_only=True)
class Seen:
    """The measurements: by mode, and by (number of fields, state of the schema)."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    health: dict[str, list[float]] = field(default_factory=dict)
    waits: dict[tuple[int, str], list[float]] = field(default_factory=dict)


def encode(
    load: Load, dialect: Dialect, schema: dict[str, object] | None, *seeds: object
) -> bytes:
    """Write a streaming request; one with a schema cannot ignore the end token."""
    body = msgspec.json.decode(dialect.encode(load, *seeds), type=dict[str, object])
    if schema is not None:
        body.pop("ignore_eos", None)
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    return msgspec.json.encode(body)


async def measure(load: Load, command: Sequence[str]) -> Seen:
    """Measure one server, the modes in turns."""
    seen = Seen()
    async with stopping_at_sigterm(), open_server(command) as running:
        server = Server(label="trioserve", url=running.url)
        dialect = await learn_dialect(server, load)
        await warm_up(server, dialect, load)
        await warm_up_grammars(server, dialect, load)
        for number in range(load.rounds):
            for mode in alternate(MODES, number):
                tell(f"round {number + 1}: {mode}")
                await measure_rate(server, dialect, load, mode, number, seen)
            await measure_waits(server, dialect, load, number, seen)
    return seen


async def warm_up_grammars(server: Server, dialect: Dialect, load: Load) -> None:
    """Send the first grammar of a server, with which it also reads its tokenizer."""
    async with Connection(server.url) as connection:
        await stream_answer("chat", connection, encode(load, dialect, ENDLESS, "w"))


async def measure_rate(
    server: Server, dialect: Dialect, load: Load, mode: str, number: int, seen: Seen
) -> None:
    """Let all clients send their requests."""
    [clients] = load.concurrency
    schema = ENDLESS if mode == "schema" else None
    count = load.num_requests(clients)
    assert count is not None, "no duration is given"
    bodies = (encode(load, dialect, schema, mode, number, i) for i in range(count))
    round_ = await run_round(server, dialect, load, bodies, clients)
    if round_.errors:
        raise SystemExit(f"errors: {dict(round_.errors)}")
    num_tokens = sum(answer.num_tokens for answer in round_.answers)
    assert num_tokens == count * load.output_tokens, "both modes do the same work"
    seen.rates.setdefault(mode, []).append(num_tokens / round_.wall_seconds)
    assert round_.probe is not None, "the rounds probe /health"
    if round_.probe.health is not None:
        seen.health.setdefault(mode, []).append(round_.probe.health.median)


async def measure_waits(
    server: Server, dialect: Dialect, load: Load, number: int, seen: Seen
) -> None:
    """Wait for the first token of answers with schemas of several sizes."""
    short = Load(input_words=1, output_tokens=1)
    async with Connection(server.url) as connection:
        for num_fields in FIELDS:
            names = [f"field_{number}_{i}" for i in range(num_fields)]
            schema: dict[str, object] = {
                "type": "object",
                "properties": {name: {"type": "string"} for name in names},
                "required": names,
                "additionalProperties": False,
            }
            states = {"none": None, "new": schema, "known": schema}
            for state, form in states.items():
                body = encode(short, dialect, form, num_fields, state, number)
                answer = await stream_answer("chat", connection, body)
                seen.waits.setdefault((num_fields, state), []).append(
                    answer.ended - answer.sent
                )


@dataclass(slots=True, kw_only=True)
class Beside:
    """The times of a free answer beside another client's request."""

    gaps: list[float] = field(default_factory=list)
    lasts: list[float] = field(default_factory=list)


async def measure_hostile(load: Load, command: Sequence[str]) -> dict[str, Beside]:
    """Measure the free answer beside each neighbour in turns."""
    seen = {name: Beside() for name in NEIGHBOURS}
    async with stopping_at_sigterm(), open_server(command) as running:
        server = Server(label="trioserve", url=running.url)
        dialect = await learn_dialect(server, load)
        await warm_up(server, dialect, load)
        await warm_up_grammars(server, dialect, load)
        for number in range(load.rounds):
            for name in alternate(list(NEIGHBOURS), number):
                tell(f"round {number + 1}: {name}")
                await measure_beside(server, dialect, load, name, number, seen[name])
    return seen


async def measure_beside(
    server: Server, dialect: Dialect, load: Load, name: str, number: int, seen: Beside
) -> None:
    """Stream a free answer while the neighbour's request runs."""
    ended = math.inf
    fields = NEIGHBOURS[name]

    async def disturb(fields: dict[str, object]) -> None:
        nonlocal ended
        body = msgspec.json.decode(encode(load, dialect, None, name, number), type=dict)
        body.pop("ignore_eos", None)
        body |= {"n": 24, "temperature": 1.0, "seed": number, **fields}
        async with Connection(server.url) as connection:
            try:
                await stream_answer("chat", connection, msgspec.json.encode(body))
            except RequestFailed as error:
                tell(str(error))
        ended = trio.current_time()

    async with trio.open_nursery() as nursery, Connection(server.url) as connection:
        began = trio.current_time()
        if fields is not None:
            nursery.start_soon(disturb, fields)
        body = encode(load, dialect, None, "beside", name, number)
        answer = await stream_answer("chat", connection, body)
        nursery.cancel_scope.cancel()
    seen.lasts.append(min(answer.ended, ended) - began)
    seen.gaps += [
        gap for gap, text in zip(answer.list_gaps(), answer.texts[1:]) if text < ended
    ]


def build_beside(seen: dict[str, Beside]) -> Iterator[list[str]]:
    yield ["beside", "between tokens, ms", "p95", "longest", "lasts s"]
    for name, each in seen.items():
        gaps = sorted(each.gaps)
        ranked = statistics.median(gaps), gaps[len(gaps) * 95 // 100], gaps[-1]
        yield [name, *map(write_milliseconds, ranked), write_number(max(each.lasts))]


def build_rates(seen: Seen) -> Iterator[list[str]]:
    yield ["", *MODES, "ratio"]
    rates = [seen.rates[mode] for mode in MODES]
    yield [
        "tokens/s",
        *(write_number(statistics.median(each)) for each in rates),
        describe_ratios(list_ratios(rates[1], rates[0])),
    ]
    if seen.health:
        health = [seen.health[mode] for mode in MODES]
        yield [
            "/health p50, ms",
            *(write_milliseconds(statistics.median(each)) for each in health),
            describe_ratios(list_ratios(health[1], health[0])),
        ]


def build_waits(seen: Seen) -> Iterator[list[str]]:
    states = ("none", "new", "known")
    yield ["first token, ms", *states]
    for num_fields in FIELDS:
        waits = [seen.waits[num_fields, state] for state in states]
        yield [
            f"{num_fields} fields",
            *(write_milliseconds(statistics.median(each)) for each in waits),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL)
    add("--clients", type=read_positive, default=16)
    add("--rounds", type=read_positive, default=5)
    add("--hostile", action="store_true", help="measure one client beside another")
    options = parser.parse_args()
    if options.hostile:
        measure_neighbours(options.model, options.rounds)
        return
    load = Load(concurrency=(options.clients,), rounds=options.rounds)
    machine = describe_machine()
    seen = trio.run(measure, load, write_serve_command(options.model))
    print("\n".join(write_markdown(build_rates(seen))))
    print()
    print("\n".join(write_markdown(build_waits(seen))))
    print(f"{machine}; {options.model}; {options.clients} clients; {load.describe()}")
    print(f"medians of {options.rounds} rounds")


def measure_neighbours(model: str, rounds: int) -> None:
    load = Load(input_words=16, output_tokens=256, rounds=rounds)
    machine = describe_machine()
    seen = trio.run(measure_hostile, load, write_serve_command(model))
    print("\n".join(write_markdown(build_beside(seen))))
    print(f"{machine}; {model}; {rounds} rounds; {load.describe()}")


if __name__ == "__main__":
    main()
