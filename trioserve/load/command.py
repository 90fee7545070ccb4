"""Measures servers, and shows the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
import sys
from typing import Any

from tqdm import tqdm
import trio

from ..errors import InvalidConfig, StartupError, needing_extra
from .config import BenchServeConfig, ResultsConfig
from .generation.figures import Report, merge_reports
from .generation.load import Load
from .generation.measure import list_levels, measure
from .generation.table import render_report
from .measured_servers import Server, ServerUnusable, read_servers
from .report import check_same, load_reports, save


def run_bench_serve(config: BenchServeConfig, write: Callable[[str], int]) -> int:
    """Measure servers, show the report; returns the exit code: 1 if a server only failed.

    Args:
      write: prints a text, and returns the exit code.

    Raises:
      StartupError: a server cannot be measured, or a file cannot be used.
    """
    if config.results.plot is not None:
        # Before the run, which takes minutes.
        with needing_extra("plot", "--plot"):
            import matplotlib  # noqa: F401
    report = _gather(config)
    code = write(f"{render_report(report)}\n")
    if config.results.plot is not None:
        from .generation.plot import save_plot

        save_plot(report, Path(config.results.plot))
    if failed := report.list_failed():
        sys.stderr.write(f"trioserve: no request succeeded: {', '.join(failed)}\n")
        return 1
    return code


def _gather(config: BenchServeConfig) -> Report:
    """Measure, read saved results, and put all of them into one report."""
    results, servers = config.results, _read_servers(config)
    if results.json is not None and not servers:
        raise InvalidConfig("json", "saves a run; give a --url")
    reports = _load_reports(results)
    loads = [report.load.describe() for report in reports]
    try:
        check_same([config.load.describe(), *loads] if servers else loads)
    except ValueError as error:
        raise StartupError(str(error)) from None
    if servers:
        reports.insert(0, _measure(config.load, servers))
        save(None if results.json is None else Path(results.json), reports[0])
    return merge_reports(reports)


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


def _measure(load: Load, servers: Sequence[Server]) -> Report:
    bar: Any = tqdm(
        total=load.rounds * len(list_levels(load)) * len(servers),
        unit=" rounds",
        file=sys.stderr,
        disable=not sys.stderr.isatty(),
    )

    def note(server: Server, level: float, seen: object) -> None:
        bar.set_description(f"{server.label}, {level:g}")
        bar.update()

    failed: StartupError | None = None
    try:
        return trio.run(measure, load, servers, note)
    except ServerUnusable as error:
        failed = StartupError(str(error))
    finally:
        bar.close()
    raise failed
