"""Measures servers, and shows the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
import sys

import trio

from ..errors import InvalidConfig, StartupError, escape, make_safe, needing_extra
from .config import BenchServeConfig, ResultsConfig
from .generation.figures import Report, merge_reports
from .generation.load import Load
from .generation.measure import list_levels, measure
from .generation.table import render_report
from .measured_servers import Server, ServerUnusable, read_servers
from .progress import RoundBar
from .report import check_same, load_reports, save


def run_bench_serve(config: BenchServeConfig, write: Callable[[str], int]) -> int:
    """Measure servers, show the report; returns the exit code.

    1 if a server only failed, and 2 if the results cannot be saved.

    Args:
      write: prints a text, and returns the exit code.

    Raises:
      StartupError: a server cannot be measured, or a file cannot be used.
    """
    results = config.results
    # Before the run, which takes minutes.
    if results.plot is not None:
        with needing_extra("plot", "--plot"):
            import matplotlib  # noqa: F401
    reports, is_new = _gather(config)
    report = merge_reports(reports)
    # The figures are seen first: they stay, whatever happens to the files. They quote servers.
    code = write(f"{make_safe(render_report(report))}\n")
    wrong = []
    if results.json is not None and is_new:
        wrong += _write_file("json", results.json, lambda path: save(path, reports[0]))
    if results.plot is not None:
        from .generation.plot import save_plot

        wrong += _write_file("plot", results.plot, partial(save_plot, report))
    for error in wrong:
        sys.stderr.write(f"trioserve: {escape(str(error))}\n")
    if failed := report.list_failed():
        labels = escape(", ".join(failed))
        sys.stderr.write(f"trioserve: no request succeeded: {labels}\n")
    return 2 if wrong else 1 if failed else code


def _gather(config: BenchServeConfig) -> tuple[list[Report], bool]:
    """Measure, and read saved results; returns whether the first report is of this run."""
    results, servers = config.results, _read_servers(config)
    if results.json is not None and not servers:
        raise InvalidConfig("json", "saves a run; give a --url")
    reports = _load_reports(results)
    loads = [report.load.describe() for report in reports]
    try:
        check_same([config.load.describe(), *loads] if servers else loads)
    except ValueError as error:
        raise StartupError(str(error)) from None
    results.check_writable()
    if servers:
        reports.insert(0, _measure(config.load, servers))
    return reports, bool(servers)


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


def _measure(load: Load, servers: Sequence[Server]) -> Report:
    bar = RoundBar(load, load.rounds * len(list_levels(load)) * len(servers))
    failed: StartupError | None = None
    try:
        return trio.run(measure, load, servers, bar)
    except ServerUnusable as error:
        failed = StartupError(str(error))
    finally:
        bar.close()
    raise failed
