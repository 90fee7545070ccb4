"""The plot of servers under load: throughput, waiting, /health."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..measuring.plot import (
    GREY,
    MARKERS,
    add_legend,
    choose_colors,
    dress,
    label_log_axis,
    list_whiskers,
    open_figure,
    write_title,
)
from .figures import Report, ServerReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHISKERS = "ms (marker: median, whisker: p99)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The look of one server in all panels."""

    server: ServerReport
    color: str
    marker: str


def choose_looks(report: Report) -> list[Look]:
    """Give each server a color and a marker."""
    colors = choose_colors(len(report.servers))
    return [
        Look(server=server, color=color, marker=MARKERS[index % len(MARKERS)])
        for index, (server, color) in enumerate(zip(report.servers, colors))
    ]


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
    for look in choose_looks(report):
        axes.plot(
            [levels.index(level.level) for level in look.server.levels],
            [level.tokens_per_second for level in look.server.levels],
            color=look.color,
            marker=look.marker,
            markersize=5,
            linewidth=1.3,
            label=look.server.label,
        )
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)


def draw_waiting(axes: Axes, report: Report) -> None:
    """Draw the waits of clients for the first token and between tokens."""
    dress(axes, "Waiting for tokens")
    axes.set_ylabel(WHISKERS)
    draw_durations(axes, report, "ttft", is_filled=True, line="-", shift=-0.03)
    draw_durations(axes, report, "itl", is_filled=False, line=":", shift=0.03)
    axes.plot([], [], color=GREY, marker="o", linestyle="-", label="first token")
    axes.plot(
        *([], []),
        color=GREY,
        marker="o",
        markerfacecolor="white",
        linestyle=":",
        label="inter-token",
    )
    axes.legend(frameon=False, loc="best", fontsize=8)


def draw_health(axes: Axes, report: Report) -> None:
    """Draw the times of /health under that load."""
    dress(axes, "GET /health under load")
    axes.set_ylabel(WHISKERS)
    draw_durations(axes, report, "health", is_filled=True, line="-", shift=0.0)


def draw_durations(
    axes: Axes,
    report: Report,
    name: str,
    *,
    is_filled: bool,
    line: str,
    shift: float,
) -> None:
    """Draw medians with whiskers up to p99 on a logarithmic axis."""
    axes.set_yscale("log")
    levels = report.list_levels()
    for index, look in enumerate(choose_looks(report)):
        seen = [
            (levels.index(level.level), durations)
            for level in look.server.levels
            if (durations := getattr(level, name)) is not None and durations.median > 0
        ]
        # Servers are drawn beside each other, so that no whisker hides another.
        beside = 0.12 * (index - (len(report.servers) - 1) / 2) + shift
        medians, whiskers = list_whiskers([durations for _, durations in seen])
        axes.errorbar(
            [position + beside for position, _ in seen],
            medians,
            yerr=whiskers,
            color=look.color,
            marker=look.marker,
            markerfacecolor=look.color if is_filled else "white",
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
