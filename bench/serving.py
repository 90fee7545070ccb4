"""How fast does a server stream to many clients at once?

Question
  Each of N clients holds one streaming request open, and sends the next when it ends.
  How many tokens a second does the server deliver? How long does a client wait for the
  first token, and between two tokens? How long does ``GET /health`` take meanwhile, on
  a connection of its own?

      python bench/serving.py --url http://127.0.0.1:8000 --concurrency 1,16,64
      python bench/serving.py --url ours=http://127.0.0.1:8000 \\
          --url peer=http://127.0.0.1:8001 --rounds 3 --json both.json --plot both.png
      python bench/serving.py --compare monday.json tuesday.json --plot days.png

  Any server of the OpenAI API can be measured. Several servers take turns at every
  level, in reversed order every other round, so that a slow minute of the machine
  affects all of them.

Machine
  Any; the report names it. Load generator and server usually share a machine, so the
  generator must be cheap. On 2 shared cores one event costs 35-60 us with h11, which it
  uses, and 190 us with httpx.

How to read the answer
  tok/s          output tokens of all clients over the time from the first request to
                 the last answer; the median of the rounds. At the end of a level some
                 clients have no more requests, and this time counts: give more
                 --requests if the level is short.
  TTFT           from sending a request to its first text.
  ITL            between two events with text, as they reach the client. A server that
                 sends two tokens in one event, or two events in one packet, has other
                 gaps at the same speed. So compare TPOT, too.
  TPOT           (last text - first text) / (tokens - 1) of one request. It does not
                 depend on the number of tokens in an event.
  /health        one probe every 50 ms. The time of a probe that falls due before the
                 last one is answered runs from its due time to that answer.
  client cpu     CPU time of this process over wall time. Near 100 % the figures are
                 the client's and not the server's. `lag` in the JSON has the delays of
                 this process's own timers.
  tok/req        tokens of one answer; --output-tokens if the server has ignore_eos. If
                 the server gives no usage, the events are counted, and a line below the
                 table reports that.

Each request has its own prompt of random words, so prefix caches have only the template
and --shared-prefix-words. The words depend on --seed. For a second run against the same
running server, change --seed or restart the server; otherwise it has cached all
prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial

from kit.generation.figures import Report, merge_reports
from kit.generation.load import Dialect, Load, issue_bodies, learn_dialect
from kit.generation.measure import Rounds, report_server, run_round, warm_up
from kit.generation.plot import save_plot
from kit.generation.table import render_report
from kit.measured_servers import Server, ServerUnusable, read_servers
from kit.options import (
    add_compare,
    add_outputs,
    make_parser,
    read_count,
    read_positive,
    read_seconds,
)
from kit.report import (
    check_same,
    describe_machine,
    load_reports,
    run_or_explain,
    save,
    show,
    write_now,
)
from kit.rounds import alternate
import trio


async def measure(load: Load, servers: Sequence[Server]) -> Report:
    """Measure every server at every level of load, in turns.

    Raises:
      ServerUnusable: a server cannot be reached, or refuses every form of the request.
    """
    machine = describe_machine()
    dialects: dict[str, Dialect] = {}
    rounds: Rounds = {}
    with trio.move_on_after(load.timeout) as limit:
        for server in servers:
            dialects[server.label] = await learn_dialect(server, load)
        for server in servers:
            await warm_up(server, dialects[server.label], load)
        for turn, server, level in take_turns(load, servers):
            dialect = dialects[server.label]
            bodies = issue_bodies(load, dialect, level, server.turn, level, turn)
            seen = await run_round(server, dialect, load, bodies, level)
            rounds.setdefault((server.label, level), []).append(seen)
    return Report(
        created=write_now(),
        machine=machine,
        load=load,
        is_cut=limit.cancelled_caught,
        servers=tuple(
            report_server(server, dialects[server.label], rounds)
            for server in servers
            if server.label in dialects
        ),
    )


def take_turns(
    load: Load, servers: Sequence[Server]
) -> Iterator[tuple[int, Server, int]]:
    """Yield (round, server, level); at each level all servers follow each other."""
    for turn in range(load.rounds):
        for level in load.concurrency:
            for server in alternate(servers, turn):
                yield turn, server, level


# ---- the command line ----------------------------------------------------------------


def read_levels(text: str) -> tuple[int, ...]:
    """Read 1,16,64."""
    levels = tuple(int(each) for each in text.split(","))
    if min(levels) < 1 or len(set(levels)) < len(levels):
        raise argparse.ArgumentTypeError("must be different numbers of 1 or more")
    return levels


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = make_parser(__doc__)
    load = Load()
    add = parser.add_argument
    add("--url", action="append", metavar="[LABEL=]URL", help="may be repeated")
    add("--label", help="the server's name in the report, if there is one --url")
    add("--model", help="default: the first of /v1/models")
    add("--endpoint", choices=("chat", "completions"), default=load.endpoint)
    add("--concurrency", type=read_levels, default=load.concurrency, metavar="1,16,64")
    add("--rounds", type=read_positive, default=load.rounds, help="for each level")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "--requests", type=read_positive, help="of a round, whatever the clients"
    )
    ends.add_argument(
        "--requests-per-client",
        type=read_positive,
        default=load.requests_per_client,
        help="of a round; at least 8 in all",
    )
    ends.add_argument(
        "--duration", type=read_seconds, help="seconds in which requests are sent"
    )
    add("--warmup", type=read_count, default=load.warmup, help="unmeasured requests")
    add("--input-words", type=read_positive, default=load.input_words)
    add(
        "--shared-prefix-words",
        type=read_count,
        default=load.shared_prefix_words,
        help="words at the beginning of every prompt, added to --input-words",
    )
    add("--output-tokens", type=read_positive, default=load.output_tokens)
    add("--temperature", type=float, default=load.temperature)
    add("--seed", type=int, default=load.seed)
    add("--timeout", type=read_seconds, default=load.timeout, help="seconds for all")
    add_outputs(parser)
    add_compare(parser, "show saved results, too; without --url run nothing")
    return parser


def read_load(options: argparse.Namespace) -> Load:
    """Make a Load of the options that describe it."""
    return Load(**{each.name: getattr(options, each.name) for each in fields(Load)})


def gather(options: argparse.Namespace) -> Report:
    """Run the bench, read saved results, and put all of them into one report.

    Raises:
      ValueError: options or files are wrong.
      ServerUnusable: a server cannot be measured.
    """
    urls = options.url or ([] if options.compare else ["http://127.0.0.1:8000"])
    if options.label and len(urls) != 1:
        raise ValueError("--label names one server; write --url LABEL=URL for several")
    if options.json and not urls:
        raise ValueError("--json saves a run; give a --url")
    servers = read_servers(urls, options.label, options.model)
    load = read_load(options)
    reports = load_reports(options.compare, Report)
    loads = [report.load for report in reports]
    check_same(each.describe() for each in ([load, *loads] if servers else loads))
    if servers:
        reports.insert(0, trio.run(measure, load, servers))
        save(options.json, reports[0])
    return merge_reports(reports)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = build_parser().parse_args(arguments)
    expected = (ValueError, OSError, ServerUnusable)
    report = run_or_explain(partial(gather, options), expected)
    if report is None:
        return 2
    return show(report, render_report, save_plot, options.plot)


if __name__ == "__main__":
    raise SystemExit(main())
