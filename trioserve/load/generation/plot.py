"""The plot of servers under load: throughput, waiting, /health."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..plot import (
    COLORS,
    add_legend,
    dress,
    label_log_axis,
    list_whiskers,
    open_figure,
    write_title,
)
from .figures import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHISKERS = "ms (marker: median, whisker: p99)"


def save_plot(report: Report, path: Path) -> None:
    """Draw the report as three panels over the number of clients, into a PNG file."""
    with open_figure(path, (11.5, 4.4)) as figure:
        throughput, waiting, health = figure.subplots(1, 3)
        draw_throughput(throughput, report)
        draw_waiting(waiting, report)
        draw_health(health, report)
        for axes in (throughput, waiting, health):
            label_levels(axes, report)
        write_title(
            figure,
            f"{'Open' if report.load.is_open else 'Closed'}-loop load: {report.load.describe()}",
        )
        add_legend(figure)


def draw_throughput(axes: Axes, report: Report) -> None:
    """Draw output tokens per second."""
    dress(axes, "Output throughput")
    axes.set_ylabel("tokens per second, all clients")
    levels = report.list_levels()
    for index, server in enumerate(report.servers):
        axes.plot(
            [levels.index(level.level) for level in server.levels],
            [level.tokens_per_second for level in server.levels],
            color=COLORS[index % len(COLORS)],
            marker="o",
            markersize=5,
            linewidth=1.3,
            label=server.label,
        )
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)


def draw_waiting(axes: Axes, report: Report) -> None:
    """Draw the waits of clients for the first token and between tokens."""
    dress(axes, "Waiting for tokens")
    axes.set_ylabel(WHISKERS)
    draw_durations(axes, report, "ttft", marker="o", line="-", shift=-0.03)
    draw_durations(axes, report, "itl", marker="s", line=":", shift=0.03)
    for name, marker, line in (("first token", "o", "-"), ("inter-token", "s", ":")):
        axes.plot([], [], color="#666666", marker=marker, linestyle=line, label=name)
    axes.legend(frameon=False, loc="best", fontsize=8)


def draw_health(axes: Axes, report: Report) -> None:
    """Draw the times of /health under that load."""
    dress(axes, "GET /health under load")
    axes.set_ylabel(WHISKERS)
    draw_durations(axes, report, "health", marker="o", line="-", shift=0.0)


def draw_durations(
    axes: Axes, report: Report, name: str, *, marker: str, line: str, shift: float
) -> None:
    """Draw medians with whiskers up to p99 on a logarithmic axis."""
    axes.set_yscale("log")
    levels = report.list_levels()
    for index, server in enumerate(report.servers):
        seen = [
            (levels.index(level.level), durations)
            for level in server.levels
            if (durations := getattr(level, name)) is not None and durations.median > 0
        ]
        # Servers are drawn beside each other, so that no whisker hides another.
        beside = 0.12 * (index - (len(report.servers) - 1) / 2) + shift
        medians, whiskers = list_whiskers([durations for _, durations in seen])
        axes.errorbar(
            [position + beside for position, _ in seen],
            medians,
            yerr=whiskers,
            color=COLORS[index % len(COLORS)],
            marker=marker,
            markersize=5,
            linestyle=line,
            linewidth=1.3,
            elinewidth=1,
            capsize=3,
        )


def label_levels(axes: Axes, report: Report) -> None:
    """Give a panel its horizontal axis: a tick for each level, at equal distances."""
    levels = report.list_levels()
    axes.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    axes.set_xlim(-0.4, len(levels) - 0.6)
    axes.set_xlabel(
        "requests due in a second" if report.load.is_open else "concurrent clients"
    )
    if axes.get_yscale() == "log":
        low, high = axes.get_ylim()
        # Room for two numbers on the axis, even if all medians are alike.
        if high / low < 10:
            low, high = low / 2, max(high * 2, low * 5)
            axes.set_ylim(low, high)
        label_log_axis(axes.yaxis, low, high)
