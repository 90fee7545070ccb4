"""Does a server still answer while it embeds?

Question
  The largest cases of bench/pooling.py keep a server busy for seconds. How long does
  ``GET /health`` take meanwhile, and how long is the event loop away from its sockets?

      python bench/pooling_health.py --rounds 3
      python bench/pooling_health.py --cases short-512 --seconds 1 --rounds 1

  Without --url the bench starts `trioserve serve` and stops it at the end.

Machine
  Any; the report names it. The load generator and the probes share it with the server;
  run it alone.

How to read the answer
  texts/s        the median of the rounds. The probes take some of the server's time.
  /health        one probe every 50 ms, from this process. The time of a probe that
                 falls due before the last one is answered runs from its due time to
                 that answer.
  loop turn      the bucket of the longest turn of the server's event loop, from its
                 /metrics; of the worst round. Reading /metrics is itself a turn of 1 to
                 2 ms. This is wall time: on busy cores a turn is also long if the
                 system gave the core to another program.
  loop step      the same for the longest step of one task.
  client cpu     CPU time of this process over wall time. Near 100 % the figures are the
                 client's and not the server's.

  A round of a case has as many requests as the server answers in --seconds, and at
  least one for each client. Texts are random words, the same in every run; each is one
  token of BERT's tokenizer.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
import statistics

from kit.embedding.cases import (
    CASES,
    Case,
    Load,
    Vocabulary,
    build_server_parser,
    read_cases,
    write_texts,
)
from kit.embedding.figures import find_speed
from kit.embedding.server import (
    Timed,
    VectorServer,
    learn_server,
    list_doubts,
    open_servers,
    write_own_command,
)
from kit.metrics import (
    LOOP_TURNS,
    SLOW_STEPS,
    TASK_STEPS,
    Bucket,
    Metrics,
    find_gains,
    find_longest,
    find_new,
    try_metrics,
)
from kit.options import read_seconds
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.runs import run_and_print
import trio

from trioserve.programs.bench.measuring.clients import Round, report_clients
from trioserve.programs.bench.measuring.measured_servers import (
    Server,
    ServerUnusable,
    read_servers,
)
from trioserve.programs.bench.measuring.probe import HealthProbe
from trioserve.programs.bench.measuring.table import align, write_spread
from trioserve.programs.bench.measuring.texts import WORDS

HEALTH_INTERVAL_SECONDS = 0.05

LARGE_CASES = tuple(case for case in CASES if case.is_large)

# BERT's tokenizer makes a token of each word, and adds [CLS] and [SEP].
VOCABULARY = Vocabulary(words=WORDS, num_special_tokens=2)


@dataclass(slots=True, kw_only=True)
class Seen:
    """All rounds of one case.

    Attributes:
      looks: the server's metrics before and after each round; None if it has none.
    """

    case: Case
    rounds: list[Round[Timed]] = field(default_factory=list)
    looks: list[tuple[Metrics | None, Metrics | None]] = field(default_factory=list)

    def write_row(self) -> list[str]:
        """Write the case's row of the table."""
        clients = report_clients(self.rounds)
        speed = statistics.median(map(find_speed, self.rounds)) * self.case.num_texts
        return [
            self.case.describe(),
            str(clients.num_requests),
            str(clients.num_errors),
            f"{speed:.1f}",
            *write_spread(clients.health, ("median", "p99", "maximum")),
            self._find_worst(LOOP_TURNS),
            self._find_worst(TASK_STEPS),
            f"{100 * clients.cpu:.0f}",
        ]

    def _find_worst(self, name: str) -> str:
        buckets = [
            find_longest(find_gains(before.read_histogram(name), counts))
            for before, after in self._list_pairs()
            if (counts := after.read_histogram(name))
        ]
        return max(buckets, key=_read_bound).write() if buckets else "-"

    def list_doubts(self) -> Iterator[str]:
        """Write a line for each reason to doubt the row."""
        slow: Counter[str] = Counter()
        for before, after in self._list_pairs():
            counts = (
                each.read_by_label(SLOW_STEPS, "task") for each in (before, after)
            )
            slow.update(find_new(*counts))
        for task, count in slow.items():
            yield f"{count} slow steps of {task}"
        answers = [each for one in self.rounds for each in one.answers]
        yield from list_doubts(self.case, answers)
        yield from report_clients(self.rounds).list_doubts()

    def _list_pairs(self) -> Iterator[tuple[Metrics, Metrics]]:
        for before, after in self.looks:
            if before is not None and after is not None:
                yield before, after


def _read_bound(bucket: Bucket) -> float:
    return bucket.above


async def measure(
    load: Load, servers: Sequence[Server], serve_command: Sequence[str] | None = None
) -> list[Seen]:
    """Measure one server in all cases, `load.rounds` times.

    Raises:
      ProcessEnded: the command failed, or SIGTERM came.
      ServerUnusable: the server cannot be reached.
    """
    async with stopping_at_sigterm(), open_servers(servers, serve_command) as running:
        server = await learn_server(running[0], load)
        seen = [Seen(case=case) for case in load.cases]
        tell("warming up")
        counts = [await count_requests(server, load, case) for case in load.cases]
        for number in range(load.rounds):
            for each, count in zip(seen, counts):
                tell(f"round {number + 1}: {each.case.describe()}")
                await measure_round(server, load, each, number, count)
    return seen


async def count_requests(server: VectorServer, load: Load, case: Case) -> int:
    """Send a request of each client, and return the number of requests in a round."""
    requests = write_requests(load, case, "warm-up", case.clients)
    seen = await server.run(case, requests)
    return load.count_requests(case, seen.wall_seconds / case.clients)


def write_requests(
    load: Load, case: Case, turn: object, count: int
) -> Iterable[list[str]]:
    return [
        write_texts(case, VOCABULARY, load.seed, case.name, turn, index)
        for index in range(count)
    ]


async def measure_round(
    server: VectorServer, load: Load, seen: Seen, number: int, num_requests: int
) -> None:
    requests = write_requests(load, seen.case, number, num_requests)
    probe = HealthProbe(server.url, HEALTH_INTERVAL_SECONDS)
    before = await try_metrics(server.url)
    seen.rounds.append(await server.run(seen.case, requests, probe))
    seen.looks.append((before, await try_metrics(server.url)))


def render(seen: Sequence[Seen]) -> str:
    """Write the table, and the reasons to doubt it."""
    rows = [
        ["", "", "", "", "/health ms", "", "", "loop ms", "", "client"],
        ["case", "requests", "errors", "texts/s", "p50", "p99", "max"]
        + ["turn", "step", "cpu %"],
        *(each.write_row() for each in seen),
    ]
    doubts = [
        f"{each.case.describe()}: {doubt}"
        for each in seen
        for doubt in each.list_doubts()
    ]
    return "\n".join([align(rows), *doubts])


def build_parser() -> argparse.ArgumentParser:
    parser = build_server_parser(__doc__)
    add = parser.add_argument
    read = partial(read_cases, known=LARGE_CASES)
    names = ",".join(case.name for case in LARGE_CASES)
    add("--cases", type=read, default=LARGE_CASES, metavar="NAME,NAME", help=names)
    add("--seconds", type=read_seconds, default=Load().seconds, help="for each round")
    add("--seed", type=int, default=Load().seed)
    return parser


def gather(options: argparse.Namespace) -> list[Seen]:
    load = Load(
        cases=options.cases,
        model=options.model,
        num_threads=options.num_threads,
        rounds=options.rounds,
        seconds=options.seconds,
        seed=options.seed,
    )
    servers = read_servers([options.url] if options.url else [])
    command = None if servers else write_own_command(load)
    return trio.run(measure, load, servers, command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    notes = f"{options.model}; {options.rounds} rounds"
    expected = (ValueError, OSError, ProcessEnded, ServerUnusable)
    return run_and_print(partial(gather, options), render, notes, expected)


if __name__ == "__main__":
    raise SystemExit(main())
