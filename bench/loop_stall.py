"""How much does a server gain by rendering off the event loop?

Question
  Requests that are expensive to read arrive in a burst. How long does ``GET /health``
  take meanwhile, how long is the event loop away from its sockets, and how long are the
  gaps of other clients' streams, if requests are rendered

      inline     on the loop itself (the server has no such option;
                 kit/rendering/server.py replaces two methods of the renderer workers)
      threads    by renderer workers, the default (--renderer-num-workers 1)
      processes  like threads, but templates in a process (--renderer-processes 1)?

  All clients of a burst begin at once. The burst ends with the last answer:

      images     72 clients; each sends a chat with a JPEG image of one megapixel as a
                 data: URL; all images differ
      embeds     8 clients with completions of prompt_embeds of 2048 x 4096 bfloat16,
                 and one with 8192 x 4096: 16.8 and 67 MB from torch.save, as base64;
                 three each, one after another
      templates  64 clients with chats of 100 messages and three tools, of which the
                 template makes 24,000 characters; four each, one after another
      mixed      all of these, while 16 other clients (bystanders) read streamed chats

      python bench/loop_stall.py --json stall.json --plot stall.png
      python bench/loop_stall.py --small

Machine
  Any; the report names it. The server's loop and threads, this process, which sends the
  burst, and the prober share its cores. `generator cpu` is the share of a core that
  this process takes. The bodies are encoded before the burst.

How to read the answer
  req/s          requests over the time from the first byte to the last answer.
  /health        one probe every 10 ms from a process of its own. The time of a probe
                 that falls due before the last one is answered runs from its due time
                 to that answer.
  loop gap       the longest turn of the loop: the longest time in which it looked at no
                 socket (trioserve.observe.LoopStall, which is on in every server).
  longest step   the longest step of a task between two waits, and the task; the task is
                 "-" below 5 ms. A turn has several steps, so it may be long even if no
                 step is.
  ITL p99        time between two events with text of a bystander's stream, measured by
                 the prober. It contains the engine's own step in every mode.

  Every figure is the median of the rounds; the task is from the worst round. Modes
  take turns within a round, in reversed order every other round. Each has a new server,
  so that no image is in a cache.

Caveats
  The model is tiny and random. The steps of a real one last longer, and the loop is
  free for longer. The engine computes as little as possible: an answer has one token,
  and prompts of tensors and of text are found in the prefix cache. The rest of its work
  competes with the renderer's threads for the cores in `threads` and `processes`, and
  waits for the loop in `inline`, so req/s may be higher or lower.

  LoopStall measures wall time: on busy cores a turn is also long if the system gave the
  core to another program. With other load on the machine only ratios are useful. A
  thread that takes the GIL while the loop waits for its sockets delays the loop, too.
  /health shows that; LoopStall does not.

  An inline server runs all ready tasks in one turn, because trio does so. Another loop
  might look at its sockets a little more often.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kit.bars import save_bars
from kit.options import add_outputs, read_choice, read_positive
from kit.probe_process import open_prober
from kit.process import tell
from kit.rendering.bursts import SMALL, Size, Turns, build_bursts, send_burst, warm_up
from kit.rendering.model import save_model
from kit.rendering.server import MODES, RenderingServer, open_rendering_server
from kit.rounds import alternate, find_medians
import trio

from trioserve.programs.bench.measuring.plot import BLUE, GREEN, VERMILION
from trioserve.programs.bench.measuring.report import describe_machine, save, write_now
from trioserve.programs.bench.measuring.statistics import Spread
from trioserve.programs.bench.measuring.table import (
    align,
    write_milliseconds,
    write_ratio,
)

SCENARIOS = ("images", "embeds", "templates", "mixed")

# A pause after a burst, in which its closed sockets disappear.
SETTLE_SECONDS = 0.3
POLL_SECONDS = 0.05


# ---- one burst ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One mode's figures of one scenario, of one round or the medians of several.

    Attributes:
      inter_token: gaps of the bystanders' streams; None without bystanders.
    """

    requests_per_second: float
    health: Spread
    loop_gap_seconds: float
    longest_step_seconds: float
    longest_step_task: str
    inter_token: Spread | None
    num_failures: int
    failures: dict[str, int]
    generator_cpu: float
    prober_lag_p99: float
    offenders: list[str]

    def list_durations(self) -> list[float | None]:
        """List the table's durations in seconds; None for one that was not measured."""
        return [
            self.health.median,
            self.health.p95,
            self.health.p99,
            self.loop_gap_seconds,
            self.longest_step_seconds,
            None if self.inter_token is None else self.inter_token.p99,
        ]


async def measure_burst(
    server: RenderingServer, clients: Iterable[Turns], num_bystanders: int
) -> Figures:
    """Measure one burst of an idle server."""
    await wait_idle(server)
    async with open_prober(server.port, num_bystanders) as prober:
        await server.reset()
        await prober.start()
        burst = await send_burst(server.port, clients)
        probes = await prober.stop()
        report = await server.report()
    return Figures(
        requests_per_second=burst.num_answers / burst.seconds,
        health=probes.health,
        loop_gap_seconds=report.loop_gap_seconds,
        longest_step_seconds=report.longest_step_seconds,
        longest_step_task=report.longest_step_task,
        inter_token=probes.inter_token,
        num_failures=burst.failures.total() + probes.num_failures,
        failures=dict(burst.failures),
        generator_cpu=burst.generator_cpu,
        prober_lag_p99=probes.lag.p99,
        offenders=report.offenders,
    )


async def wait_idle(server: RenderingServer) -> None:
    """Wait until the engine has nothing to do, and a moment longer."""
    report = await server.report()
    while report.num_streams:
        await trio.sleep(POLL_SECONDS)
        report = await server.report()
    await trio.sleep(SETTLE_SECONDS)


# ---- a whole run --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All rounds of one mode in one scenario."""

    scenario: str
    mode: str
    median: Figures
    rounds: tuple[Figures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    num_rounds: int
    size: Size
    results: tuple[Result, ...]


async def measure(
    size: Size, scenarios: Sequence[str], modes: Sequence[str], num_rounds: int
) -> Results:
    """Measure every mode in every scenario, `num_rounds` times."""
    machine = describe_machine()
    seen: dict[tuple[str, str], list[Figures]] = {}
    with TemporaryDirectory() as folder:
        tell("encoding the requests")
        bursts = build_bursts(size)
        save_model(Path(folder))
        for number in range(num_rounds):
            for mode in alternate(modes, number):
                tell(f"round {number + 1} of {num_rounds}: {mode}")
                async with open_rendering_server(mode, Path(folder)) as server:
                    await warm_up(server.port, bursts.warm_up)
                    for scenario in scenarios:
                        num_streams = size.num_bystanders if scenario == "mixed" else 0
                        figures = await measure_burst(
                            server, bursts.clients[scenario], num_streams
                        )
                        seen.setdefault((scenario, mode), []).append(figures)
    return Results(
        created=write_now(),
        machine=machine,
        num_rounds=num_rounds,
        size=size,
        results=tuple(
            Result(
                scenario=scenario,
                mode=mode,
                median=take_medians(seen[scenario, mode]),
                rounds=tuple(seen[scenario, mode]),
            )
            for scenario in scenarios
            for mode in modes
        ),
    )


def take_medians(rounds: Sequence[Figures]) -> Figures:
    """Take each figure's median; add up failures, and take the worst round's task."""
    worst = max(rounds, key=lambda figures: figures.longest_step_seconds)
    return find_medians(
        rounds,
        longest_step_task=worst.longest_step_task,
        num_failures=sum(each.num_failures for each in rounds),
        failures=dict(sum((Counter(each.failures) for each in rounds), Counter())),
        offenders=worst.offenders,
    )


# ---- the table and the plot ---------------------------------------------------------


def render_results(results: Results) -> str:
    """Write the results as text: the table, ratios to threads, and notes."""
    parts = [align(build_table(results), left=(0, 1, 9))]
    if ratios := build_ratios(results):
        parts.append(align(ratios, left=(0, 1)))
    return "\n\n".join([*parts, "\n".join(write_notes(results))])


def build_table(results: Results) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a scenario and mode."""
    rows = [
        ["", "", "", "/health ms", "", "", "loop gap", "longest step", "ITL p99", ""],
        ["scenario", "mode", "req/s", "p50", "p95", "p99", "ms", "ms", "ms", "task"],
    ]
    for result in results.results:
        seen = result.median
        rows.append(
            [
                result.scenario,
                result.mode,
                f"{seen.requests_per_second:.1f}",
                *map(write_milliseconds, seen.list_durations()),
                shorten(seen.longest_step_task),
            ]
        )
    return rows


def shorten(name: str) -> str:
    """Keep the last two parts of a task's name."""
    return ".".join(name.split(".")[-2:]).replace("<locals>.", "")


def build_ratios(results: Results) -> list[list[str]]:
    """Divide the medians of other modes by the medians of `threads`; empty without both."""
    base = {
        each.scenario: each.median for each in results.results if each.mode == "threads"
    }
    headings = ["p50", "p95", "p99", "loop gap", "longest step", "ITL p99"]
    rows = [["ratio of medians", "scenario", "req/s", *headings]]
    for result in results.results:
        if result.mode == "threads" or result.scenario not in base:
            continue
        seen, under = result.median, base[result.scenario]
        rows.append(
            [
                f"{result.mode} / threads",
                result.scenario,
                write_ratio(seen.requests_per_second, under.requests_per_second),
                *map(write_ratio, seen.list_durations(), under.list_durations()),
            ]
        )
    return rows if len(rows) > 1 else []


def write_notes(results: Results) -> Iterator[str]:
    """Describe the run, and list the reasons to doubt its figures."""
    yield f"{results.machine}; {results.created}; median of {results.num_rounds} rounds"
    yield ", ".join(f"{name} {value}" for name, value in asdict(results.size).items())
    busiest = max(each.median.generator_cpu for each in results.results)
    lag = max(each.median.prober_lag_p99 for each in results.results)
    yield (
        f"generator cpu: up to {100 * busiest:.0f} % of a core; "
        f"the prober's timers were up to {1000 * lag:.1f} ms late (p99)"
    )
    for result in results.results:
        if result.median.num_failures:
            failures = result.median.failures or "closed connections"
            yield (
                f"{result.scenario}, {result.mode}: {result.median.num_failures} "
                f"failures: {failures}"
            )


COLORS = {"inline": VERMILION, "threads": BLUE, "processes": GREEN}

PANELS: dict[str, Callable[[Figures], float]] = {
    "GET /health, median, ms": lambda seen: 1000 * seen.health.median,
    "GET /health, p99, ms": lambda seen: 1000 * seen.health.p99,
    "Longest gap of the loop, ms": lambda seen: 1000 * seen.loop_gap_seconds,
}


def save_plot(results: Results, path: Path) -> None:
    """Draw the results as three panels of bars, into a PNG file."""
    panels: dict[str, dict[str, list[float]]] = {title: {} for title in PANELS}
    for title, read in PANELS.items():
        for each in results.results:
            panels[title].setdefault(each.mode, []).append(read(each.median))
    save_bars(
        path,
        "A burst of requests that are expensive to read, by the place of rendering",
        panels,
        list(dict.fromkeys(each.scenario for each in results.results)),
        COLORS,
        size=(12.5, 4.4),
        num_columns=3,
    )


# ---- the command line ---------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive)
    for name, known in (("scenarios", SCENARIOS), ("modes", MODES)):
        parser.add_argument(
            f"--{name}",
            type=partial(read_choice, known=known),
            default=known,
            help=",".join(known),
        )
    parser.add_argument(
        "--small", action="store_true", help="few requests, to check that it works"
    )
    add_outputs(parser)
    parsed = parser.parse_args(arguments)
    if parsed.rounds is None:
        parsed.rounds = 1 if parsed.small else 3
    return parsed


def main() -> None:
    options = parse_arguments()
    size = SMALL if options.small else Size()
    results = trio.run(measure, size, options.scenarios, options.modes, options.rounds)
    print(render_results(results))
    save(options.json, results)
    if options.plot is not None:
        save_plot(results, options.plot)


if __name__ == "__main__":
    main()
