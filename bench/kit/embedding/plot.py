"""The plot of systems that embed: texts per second, and the time of a request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit.bars import COLORS
from kit.embedding.cases import Case
from kit.embedding.figures import REFERENCE_LABEL, CaseReport, Report, SystemReport

from trioserve.programs.bench.measuring.plot import (
    GREY,
    add_legend,
    dress,
    label_log_axis,
    list_whiskers,
    open_figure,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The first system is the reference.
SYSTEM_COLORS = (GREY, *COLORS)
MARKERS = ("o", "s", "D", "^", "v", "P")

# A case, and the systems that were measured in it, each with its number and its height.
Row = tuple[Case, list[tuple[int, float, SystemReport, CaseReport]]]


def save_plot(report: Report, path: Path) -> None:
    """Draw the report as two panels with a row for each case, into a PNG file."""
    rows = list_rows(report)
    with open_figure(path, (11, 2.4 + 0.36 * len(rows))) as figure:
        speeds, latencies = figure.subplots(1, 2, sharey=True)
        draw_speeds(speeds, rows)
        draw_latencies(latencies, rows)
        finish_panel(speeds, "Texts per second", "right is faster; x: times as fast")
        finish_panel(
            latencies, "Time of a request", "ms (marker: median, whisker: p99)"
        )
        label_rows(speeds, rows)
        title = f"Embeddings over HTTP, against {REFERENCE_LABEL} in a process beside"
        write_title(figure, f"{title}\n{report.load.describe()}")
        add_legend(figure)


def list_rows(report: Report) -> list[Row]:
    """List the cases that were measured, and spread the heights of the systems."""
    rows: list[Row] = []
    for case in report.load.cases:
        seen = [
            (number, system, figures)
            for number, system in enumerate(report.systems)
            if (figures := system.find(case.name)) and figures.clients.num_requests
        ]
        if seen:
            # Whiskers must not hide each other.
            step = min(0.28, 0.8 / len(seen))
            top = len(rows) - (len(seen) - 1) / 2 * step
            rows.append(
                (
                    case,
                    [
                        (number, top + index * step, system, figures)
                        for index, (number, system, figures) in enumerate(seen)
                    ],
                )
            )
    return rows


def draw_speeds(axes: Axes, rows: list[Row]) -> None:
    """Draw texts per second, and how many times as many as the reference."""
    for _, systems in rows:
        for number, height, system, seen in systems:
            color = SYSTEM_COLORS[number % len(SYSTEM_COLORS)]
            axes.plot(
                seen.texts_per_second,
                height,
                color=color,
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                linestyle="",
                label=system.label,
            )
            if not system.is_reference:
                axes.annotate(
                    f"{seen.ratio:.2f} x",
                    (seen.texts_per_second, height),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=color,
                )


def draw_latencies(axes: Axes, rows: list[Row]) -> None:
    """Draw medians with whiskers up to p99."""
    for _, systems in rows:
        for number, height, _, seen in systems:
            if seen.latency is None:
                continue
            medians, whiskers = list_whiskers([seen.latency])
            axes.errorbar(
                medians,
                height,
                xerr=whiskers,
                color=SYSTEM_COLORS[number % len(SYSTEM_COLORS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                elinewidth=1,
                capsize=3,
            )


def finish_panel(axes: Axes, title: str, label: str) -> None:
    """Give a panel its names and a logarithmic axis."""
    dress(axes, title, along="x")
    axes.set_xlabel(label)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    label_log_axis(axes.xaxis, *axes.get_xlim())
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def label_rows(axes: Axes, rows: list[Row]) -> None:
    """Name the cases, the first at the top, and shade every other one."""
    axes.set_yticks(range(len(rows)), [case.describe() for case, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for each in axes.figure.axes:
        for row in range(0, len(rows), 2):
            each.axhspan(row - 0.5, row + 0.5, color="#F6F6F6", zorder=0)
