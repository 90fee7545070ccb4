"""How fast does a server embed texts, compared with sentence-transformers?

Question
  A program that needs vectors may call SentenceTransformer.encode itself. How many
  texts a second does it get in this way, and how many from a server over HTTP, with the
  same model and as many threads?

      python bench/pooling.py --json embed.json --plot embed.png
      python bench/pooling.py --cases short-1,mixed-32 --seconds 1 --rounds 1
      python bench/pooling.py --start --url peer=http://127.0.0.1:8001/v1
      python bench/pooling.py --compare monday.json tuesday.json --plot days.png

  Without --url the bench starts `trioserve serve` and stops it at the end. With --url
  it measures any server with OpenAI's /v1/embeddings; --start adds our own server.
  sentence-transformers runs in a process of its own, so it shares neither memory nor
  threads with a server. Each system is idle while another is measured: within a round
  they take turns at every case, in reversed order every other round, with the same
  texts.

      short-N              one client, N texts of 12 tokens in a request
      equal-32             32 texts of 64 tokens
      mixed-8, -32, -512   texts of 8 to 256 tokens, log-uniformly: half are below 45
      clients-N            N clients at once, one text of 12 tokens each
      mixed-clients-N      N clients at once, 8 texts of 8 to 256 tokens each
      long-512             512 texts of 512 tokens: 262,144 tokens in a request

  bench/pooling_overhead.py divides the time of one short text into parts, and
  bench/pooling_health.py measures whether a server still answers while it embeds.

Machine
  Any; the report names it. The load generator takes some of the machine's time from the
  server, but not from sentence-transformers, whose process times only encode(). Run it
  alone: the threads of GNU OpenMP spin while they wait, which costs a lot on a busy
  machine. trioserve limits that for itself; GOMP_SPINCOUNT=1000 in the environment
  limits it for both.

How to read the answer
  req/s, texts/s, tok/s  the median of the rounds; special tokens count. In a round all
                 systems get the same requests: as many as sentence-transformers does in
                 --seconds, and at least one for each client.
  x ST           texts/s over sentence-transformers' texts/s; the median of the rounds'
                 ratios. sentence-transformers gets the texts of a request in one call,
                 sorts them by length and pads batches of 32.
  p50, p99       time of a request. With several clients the calls of
                 sentence-transformers come one after another, as in a server with a
                 lock around encode(). Its latency contains the wait for that lock, but
                 no HTTP.
  client cpu     CPU time of this process over wall time. Near 100 % the figures are the
                 client's and not the server's.

  Texts are random words of one token each, the same in every run. First the vectors of
  some texts are compared: the notes give the largest difference between the server's
  and sentence-transformers' vectors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Protocol

from kit.embedding.cases import CASES, COMPARED, Case, Load, read_cases, write_texts
from kit.embedding.encoder import (
    Encoder,
    check_installed,
    open_encoder,
    write_encoder_command,
)
from kit.embedding.figures import (
    REFERENCE_LABEL,
    CaseReport,
    Report,
    SystemReport,
    merge_reports,
    report_case,
)
from kit.embedding.plot import save_plot
from kit.embedding.server import (
    OWN_LABEL,
    Timed,
    compare_vectors,
    learn_server,
    open_servers,
    write_own_command,
)
from kit.embedding.table import render_report
from kit.options import (
    add_compare,
    add_outputs,
    make_parser,
    read_positive,
    read_seconds,
)
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.rounds import alternate
from kit.runs import run_or_explain, show
import trio

from trioserve.programs.bench.measuring.clients import Round
from trioserve.programs.bench.measuring.measured_servers import (
    Server,
    ServerUnusable,
    read_servers,
)
from trioserve.programs.bench.measuring.report import (
    check_same,
    describe_machine,
    load_reports,
    save,
    write_now,
)

# So many texts of a case are used for its warm-up, and to guess its time.
WARM_UP_TEXTS = 32


class System(Protocol):
    """A system that embeds the texts of requests."""

    label: str
    about: str

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round[Timed]: ...


class Reference:
    """sentence-transformers, one request after another."""

    label = REFERENCE_LABEL

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.about = encoder.about

    async def run(self, case: Case, requests: Sequence[list[str]]) -> Round[Timed]:
        seconds = [await self._encoder.time("encode", texts) for texts in requests]
        waits = wait_behind_lock(seconds, case.clients)
        return Round(
            answers=[Timed(seconds=each) for each in waits], wall_seconds=sum(seconds)
        )


def wait_behind_lock(seconds: Sequence[float], clients: int) -> list[float]:
    """List the times of requests that are served one after another.

    Each client sends its next request when it has its answer, so the requests of all
    other clients are served before it.
    """
    return [
        sum(seconds[max(0, index - clients + 1) : index + 1])
        for index in range(len(seconds))
    ]


# ---- a whole run --------------------------------------------------------------------


async def measure(
    load: Load,
    servers: Sequence[Server],
    *,
    encoder_command: Sequence[str],
    serve_command: Sequence[str] | None = None,
) -> Report:
    """Measure sentence-transformers and all servers in all cases, in turns.

    Args:
      encoder_command: runs kit.embedding.encoder, or a program with the same protocol.
      serve_command: starts our own server, which is measured before the others.

    Raises:
      ProcessEnded: one of the two commands failed, or SIGTERM came.
      ServerUnusable: a server gives no vectors, or vectors of another size.
    """
    machine = describe_machine()
    tell("starting sentence-transformers")
    async with (
        stopping_at_sigterm(),
        open_encoder(encoder_command) as encoder,
        open_servers(servers, serve_command) as running,
    ):
        run = Run(load, encoder)
        with trio.move_on_after(load.timeout) as limit:
            await run.learn(running)
            await run.warm_up()
            await run.take_turns()
    return Report(
        created=write_now(),
        machine=machine,
        load=load,
        is_cut=limit.cancelled_caught,
        systems=tuple(run.report()),
    )


class Run:
    """The systems of a run, and their measurements so far."""

    def __init__(self, load: Load, encoder: Encoder) -> None:
        self._load = load
        self._encoder = encoder
        self._systems: list[System] = [Reference(encoder)]
        self._differences: dict[str, float] = {}
        self._num_requests: dict[str, int] = {}
        self._seen: dict[tuple[str, str], list[Round[Timed]]] = {}

    async def learn(self, servers: Sequence[Server]) -> None:
        """Get some vectors from every server, and compare them."""
        texts = write_texts(COMPARED, self._encoder.vocabulary, self._load.seed)
        expected = await self._encoder.embed(texts)
        for server in servers:
            learned = await learn_server(server, self._load)
            difference = await compare_vectors(server, learned, texts, expected)
            self._differences[server.label] = difference
            self._systems.append(learned)

    async def warm_up(self) -> None:
        """Run some texts of each case, and choose its number of requests in a round."""
        tell("warming up")
        for case in self._load.cases:
            texts = self._write_texts(case, "warm-up")
            some = texts[:WARM_UP_TEXTS]
            alone = replace(case, clients=1, num_texts=len(some))
            for system in self._systems:
                await system.run(alone, [some])
            seconds = await self._encoder.guess_seconds(some) * len(texts) / len(some)
            self._num_requests[case.name] = self._load.count_requests(case, seconds)

    async def take_turns(self) -> None:
        """Run all measurements."""
        for number in range(self._load.rounds):
            for case in self._load.cases:
                tell(f"round {number + 1} of {self._load.rounds}: {case.describe()}")
                requests = [
                    self._write_texts(case, case.name, number, index)
                    for index in range(self._num_requests[case.name])
                ]
                for system in alternate(self._systems, number):
                    await trio.sleep(self._load.pause)
                    rounds = self._seen.setdefault((system.label, case.name), [])
                    rounds.append(await system.run(case, requests))

    def _write_texts(self, case: Case, *seeds: object) -> list[str]:
        return write_texts(case, self._encoder.vocabulary, self._load.seed, *seeds)

    def report(self) -> Iterator[SystemReport]:
        """Yield a summary of each system's measurements."""
        for system in self._systems:
            yield SystemReport(
                label=system.label,
                about=system.about,
                largest_difference=self._differences.get(system.label),
                cases=tuple(self._report_cases(system)),
            )

    def _report_cases(self, system: System) -> Iterator[CaseReport]:
        for case in self._load.cases:
            rounds = self._seen.get((system.label, case.name), [])
            base = self._seen.get((REFERENCE_LABEL, case.name), [])
            # In a run that was cut, one of the two may have a round more.
            num_both = min(len(rounds), len(base))
            if num_both:
                yield report_case(case, rounds[:num_both], base[:num_both])


# ---- the command line ----------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = make_parser(__doc__)
    load = Load()
    add = parser.add_argument
    add("--url", action="append", metavar="[LABEL=]URL", help="may be repeated")
    add("--start", action="store_true", help="measure our own server, too")
    add("--model", default=load.model, help="as `trioserve serve` takes it")
    add("--max-model-len", type=read_positive, default=load.max_model_len)
    add(
        "--num-threads",
        type=read_positive,
        default=load.num_threads,
        help="threads of torch, in our own server and in sentence-transformers",
    )
    add("--cases", type=read_cases, default=CASES, metavar="NAME,NAME")
    add("--encoding", choices=("base64", "float"), default=load.encoding)
    add("--rounds", type=read_positive, default=load.rounds)
    add(
        "--seconds",
        type=read_seconds,
        default=load.seconds,
        help="time of sentence-transformers in each round of a case",
    )
    add("--pause", type=float, default=load.pause, help="seconds between two turns")
    add("--seed", type=int, default=load.seed)
    add(
        "--timeout",
        type=read_seconds,
        default=load.timeout,
        help="seconds for the whole run after the start",
    )
    add_outputs(parser)
    add_compare(parser, "show saved results side by side, and run nothing")
    return parser


def gather(options: argparse.Namespace) -> Report:
    """Run the bench, or read saved results.

    Raises:
      ValueError: options or files are wrong, or sentence-transformers is missing.
      ProcessEnded, ServerUnusable: as in measure.
    """
    if options.compare:
        if options.json or options.url or options.start:
            raise ValueError("--compare shows saved results; it runs and saves none")
        reports = load_reports(options.compare, Report)
        check_same(report.load.describe() for report in reports)
        return merge_reports(reports)
    check_installed()
    load = Load(**{each.name: getattr(options, each.name) for each in fields(Load)})
    servers = read_servers(options.url or [])
    starts_own = options.start or not servers
    taken = {REFERENCE_LABEL, OWN_LABEL} if starts_own else {REFERENCE_LABEL}
    if clashes := taken.intersection(server.label for server in servers):
        raise ValueError(f"{', '.join(clashes)}: the label is taken")
    report = trio.run(
        partial(
            measure,
            load,
            servers,
            encoder_command=write_encoder_command(load),
            serve_command=write_own_command(load) if starts_own else None,
        )
    )
    save(options.json, report)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    expected = (ValueError, OSError, ProcessEnded, ServerUnusable)
    report = run_or_explain(partial(gather, options), expected)
    if report is None:
        return 2
    return show(report, render_report, save_plot, options.plot)


if __name__ == "__main__":
    raise SystemExit(main())
