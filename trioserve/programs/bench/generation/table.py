"""The table of servers under load, and the ratios to the first of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..measuring.table import align, write_ratio, write_spread
from .figures import LevelReport, Report, ServerReport

DURATIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # heading, attribute of LevelReport, fields of Spread
    ("TTFT ms", "ttft", ("median", "p90", "p99")),
    ("ITL ms", "itl", ("median", "p90", "p99")),
    ("TPOT ms", "tpot", ("median",)),
    ("latency ms", "latency", ("median", "p90", "p99")),
    ("/health ms", "health", ("median", "p99", "maximum")),
    ("late ms", "late", ("p99",)),
)

COLUMN_NAMES = {"maximum": "max"}


def render_report(report: Report) -> str:
    """Write a report as text: the table, ratios where there are several, and notes."""
    parts = [align(build_table(report))]
    ratios = build_ratios(report)
    if len(ratios) > 1:
        parts.append(align(ratios))
    parts.append("\n".join(write_notes(report)))
    return "\n\n".join(parts)


def build_table(report: Report) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a server and level."""
    above = ["", "", "", "", "", ""]
    below = ["server", _name_levels(report), "requests", "errors", "tok/req", "tok/s"]
    for heading, _, columns in DURATIONS:
        above += [heading] + [""] * (len(columns) - 1)
        below += [COLUMN_NAMES.get(column, column) for column in columns]
    rows = [above + ["client"], below + ["cpu %"]]
    for server, level in report.by_level():
        row = [
            server.label,
            f"{level.level:g}",
            str(level.clients.num_requests),
            str(level.clients.num_errors),
            f"{level.tokens_per_request:.1f}",
            f"{level.tokens_per_second:.1f}",
        ]
        for _, name, columns in DURATIONS:
            row += write_spread(getattr(level, name), columns)
        rows.append(row + [f"{100 * level.clients.cpu:.0f}"])
    return rows


def build_ratios(report: Report) -> list[list[str]]:
    """Divide every server's medians by the first server's at the same level."""
    names = [heading.removesuffix(" ms") for heading, _, _ in DURATIONS]
    rows = [["ratio of medians", _name_levels(report), "tok/s", *names]]
    if not report.servers:
        return rows
    first = report.servers[0]
    base = {level.level: level for level in first.levels}
    for server, level in report.by_level():
        if server is not first and level.level in base:
            rows.append(
                [
                    f"{server.label} / {first.label}",
                    f"{level.level:g}",
                    *divide(level, base[level.level]),
                ]
            )
    return rows


def divide(level: LevelReport, base: LevelReport) -> Iterator[str]:
    """Write the ratios of two levels' medians; a dash where one has none."""
    yield write_ratio(level.tokens_per_second, base.tokens_per_second)
    for _, name, _ in DURATIONS:
        over, under = getattr(level, name), getattr(base, name)
        both = over is not None and under is not None
        yield write_ratio(over.median, under.median) if both else "-"


def write_notes(report: Report) -> Iterator[str]:
    """Describe the run, and list the reasons to doubt its figures."""
    yield f"{report.machine}; {report.created}; {report.load.describe()}"
    for server in report.servers:
        yield f"{server.label}: {server.url}, model {server.model}"
        if not server.has_ignore_eos:
            yield f"{server.label}: ignore_eos was refused; answers may end early"
        for level in server.levels:
            for doubt in level.list_doubts():
                yield f"{server.label}, {describe_level(level)}: {doubt}"
            yield from _describe_goodput(server, level)
    if report.is_cut:
        limit = f"--timeout {report.load.timeout:g} s"
        yield f"cut short by {limit} or by Ctrl-C: the rest was not run"


def _name_levels(report: Report) -> str:
    return "req/s due" if report.load.is_open else "clients"


def describe_level(level: LevelReport) -> str:
    if level.rate is not None:
        return f"{level.rate:g} requests/s"
    return f"{level.concurrency} clients"


def _describe_goodput(server: ServerReport, level: LevelReport) -> Iterator[str]:
    if level.goodput is not None:
        yield (
            f"{server.label}, {describe_level(level)}: {level.goodput:.2f} of "
            f"{level.requests_per_second:.2f} answers a second are within the bounds"
        )
