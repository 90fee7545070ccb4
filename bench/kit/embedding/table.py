"""The table of systems that embed, and notes on them."""

from __future__ import annotations

from collections.abc import Iterator

from kit.embedding.figures import Report

from trioserve.programs.bench.measuring.table import align, write_spread


def render_report(report: Report) -> str:
    """Write a report as text: the table and notes."""
    table = align(build_table(report), left=(0, 1))
    return "\n\n".join([table, "\n".join(write_notes(report))])


def build_table(report: Report) -> list[list[str]]:
    """Lay out all figures: two rows of headings, then one row a case and system."""
    above = ["", "", "", "", "", "", "", "", "latency ms", "", "client"]
    below = ["case", "system", "requests", "errors", "req/s", "texts/s", "tok/s"]
    rows = [above, [*below, "x ST", "p50", "p99", "cpu %"]]
    for case, system, seen in report.by_case():
        digits = 1 if seen.requests_per_second >= 10 else 3
        rows.append(
            [
                *(case.describe(), system.label),
                str(seen.clients.num_requests),
                str(seen.clients.num_errors),
                f"{seen.requests_per_second:.{digits}f}",
                f"{seen.texts_per_second:.1f}",
                f"{seen.tokens_per_second:.0f}",
                "-" if system.is_reference else f"{seen.ratio:.2f}",
                *write_spread(seen.latency, ("median", "p99")),
                "-" if system.is_reference else f"{100 * seen.clients.cpu:.0f}",
            ]
        )
    return rows


def write_notes(report: Report) -> Iterator[str]:
    """Describe the run, and list the reasons to doubt its figures."""
    yield f"{report.machine}; {report.created}; {report.load.describe()}"
    for system in report.systems:
        yield f"{system.label}: {system.about}"
        if system.largest_difference is not None:
            yield (
                f"{system.label}: numbers of its vectors are up to "
                f"{system.largest_difference:.1e} from sentence-transformers'"
            )
    for case, system, seen in report.by_case():
        for doubt in seen.doubts:
            yield f"{system.label}, {case.describe()}: {doubt}"
    if report.is_cut:
        yield f"cut by --timeout {report.load.timeout:g} s: the rest was not run"
