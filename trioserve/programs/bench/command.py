"""Measures servers, and shows the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
import signal
import sys
from typing import Any

from tqdm import tqdm
import trio

from ...errors import (
    InvalidConfig,
    StartupError,
    escape,
    find_first,
    make_line,
    make_safe,
    needing_extra,
)
from .config import BenchServeConfig, ResultsConfig
from .generation.figures import Report, merge_reports
from .generation.load import Load
from .generation.measure import Watch, list_levels, measure
from .generation.table import render_report
from .measuring.measured_servers import Server, ServerUnusable, read_servers
from .measuring.report import check_same, load_reports, save

_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The reports of one command.

    Args:
      measured: result of this run; None if nothing was measured.
      saved: results of earlier runs.
      is_interrupted: the user has ended the run before its time.
    """

    measured: Report | None
    saved: Sequence[Report]
    is_interrupted: bool = False

    def merge(self) -> Report:
        measured = [] if self.measured is None else [self.measured]
        return merge_reports([*measured, *self.saved])


def run_bench_serve(config: BenchServeConfig, write: Callable[[str], int]) -> int:
    """Measure servers, show the report; returns the exit code.

    1 if a server only failed, 2 if the results cannot be saved, and 130 if Ctrl-C has ended
    the run.

    Args:
      write: prints a text, and returns the exit code.

    Raises:
      StartupError: a server cannot be measured, or a file cannot be used.
    """
    results = config.results
    # Before the run, which takes minutes.
    if results.plot is not None:
        with needing_extra("plot", "--plot"):
            import_module("matplotlib")
    gathered = _gather(config)
    report = gathered.merge()
    if gathered.is_interrupted and not report.list_levels():
        sys.stderr.write("trioserve: interrupted before the first round had ended\n")
        return _INTERRUPTED
    # The figures are seen first: they stay, whatever happens to the files. They quote servers.
    code = write(f"{make_safe(render_report(report))}\n")
    wrong = _save_results(results, gathered.measured, report)
    if failed := report.list_failed():
        labels = escape(", ".join(failed))
        sys.stderr.write(f"trioserve: no request succeeded: {labels}\n")
    if gathered.is_interrupted:
        return _INTERRUPTED
    return 2 if wrong else 1 if failed else code


def _gather(config: BenchServeConfig) -> Gathered:
    """Measure, and read saved results."""
    results, servers = config.results, _read_servers(config)
    if results.json is not None and not servers:
        raise InvalidConfig("json", "saves a run; give a --url")
    saved = _load_reports(results)
    loads = [report.load.describe() for report in saved]
    try:
        check_same([config.load.describe(), *loads] if servers else loads)
    except ValueError as error:
        raise StartupError(str(error)) from None
    results.check_writable()
    if not servers:
        return Gathered(measured=None, saved=saved)
    measured, is_interrupted = _measure(config.load, servers)
    return Gathered(measured=measured, saved=saved, is_interrupted=is_interrupted)


def _save_results(
    results: ResultsConfig, measured: Report | None, report: Report
) -> bool:
    """Write the files; returns whether that was impossible, and the user was told."""
    wrong = []
    if results.json is not None:
        wrong += _write_file("json", results.json, lambda path: save(path, measured))
    if results.plot is not None:
        from .generation.plot import save_plot

        wrong += _write_file("plot", results.plot, partial(save_plot, report))
    for error in wrong:
        sys.stderr.write(f"trioserve: {escape(str(error))}\n")
    return bool(wrong)


def _write_file(
    field: str, path: str, write: Callable[[Path], None]
) -> list[InvalidConfig]:
    """Write a file; returns the reason why it cannot be written, if there is one."""
    try:
        write(Path(path))
    except OSError as error:
        return [InvalidConfig.of_file(field, "write", path, error)]
    return []


def _read_servers(config: BenchServeConfig) -> list[Server]:
    urls = config.servers.url
    if not urls and not config.results.compare:
        raise InvalidConfig("url", "is missing: --url http://127.0.0.1:8000")
    try:
        servers = read_servers(
            urls, config.servers.label, config.servers.model, config.servers.read_key()
        )
    except ValueError as error:
        raise InvalidConfig("url", str(error)) from None
    return servers


def _load_reports(results: ResultsConfig) -> list[Report]:
    try:
        return load_reports(map(Path, results.compare), Report)
    except (OSError, ValueError) as error:
        raise InvalidConfig("compare", str(error)) from None


def _measure(load: Load, servers: Sequence[Server]) -> tuple[Report, bool]:
    """Measure; returns also whether the user has ended that."""
    bar = RoundBar(load, load.rounds * len(list_levels(load)) * len(servers))
    failed: StartupError | None = None
    try:
        return trio.run(_measure_until_interrupt, load, servers, bar)
    except* (ServerUnusable, StartupError) as errors:
        failed = StartupError(str(find_first(errors)))
    finally:
        bar.close()
    raise failed


async def _measure_until_interrupt(
    load: Load, servers: Sequence[Server], bar: RoundBar
) -> tuple[Report, bool]:
    limit = trio.CancelScope()
    is_interrupted = False

    async def watch(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal is_interrupted
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            await anext(signals)
        # Behind the block a second signal ends the process at once.
        is_interrupted = True
        limit.cancel()

    async with trio.open_nursery() as nursery:
        # Scripts start background processes that ignore the signal. This must not change.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            await nursery.start(watch)
        report = await measure(load, servers, bar, limit)
        nursery.cancel_scope.cancel()
    return report, is_interrupted


# The postfix is the round that runs now.
_FORMAT = "{n_fmt}/{total_fmt} rounds |{bar}| {elapsed}<{remaining}{postfix}"

# Seconds; a screen that changes more often costs the load generator time.
_SHORTEST_PAUSE = 0.2


class RoundBar(Watch):
    """A bar on standard error, if that is a terminal.

    Args:
      num_rounds: of all servers at all levels.
    """

    def __init__(self, load: Load, num_rounds: int) -> None:
        self._load = load
        self._num_answers = 0
        self._text = ""
        # A thread that wakes up a bar is not needed where each answer updates it.
        tqdm.monitor_interval = 0
        self._bar: Any = tqdm(
            total=num_rounds,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            bar_format=_FORMAT,
            dynamic_ncols=True,
            mininterval=_SHORTEST_PAUSE,
            # An update by 0 shows new answers, and the time.
            miniters=0,
        )
        self._bar.set_postfix_str("first requests")

    def begin(self, server: Server, level: float, turn: int) -> None:
        turns = f", round {turn + 1} of {self._load.rounds}"
        unit = "requests/s" if self._load.is_open else "clients"
        self._text = (
            f"{make_line(server.label)}, {level:g} {unit}"
            f"{turns if self._load.rounds > 1 else ''}"
        )
        self._num_answers = 0
        self._bar.set_postfix_str(self._text)

    def count_answer(self) -> None:
        self._num_answers += 1
        plural = "" if self._num_answers == 1 else "s"
        text = f"{self._text}: {self._num_answers} answer{plural}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(0)

    def end(self) -> None:
        self._bar.update()
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()
