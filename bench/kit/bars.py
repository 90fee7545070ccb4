"""Bars in groups, in panels of one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trioserve.programs.bench.measuring.plot import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    add_legend,
    dress,
    open_figure,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (BLUE, VERMILION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", INK)


def draw_bars(
    axes: Axes,
    labels: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    colors: Mapping[str, str],
) -> None:
    """Draw groups of bars on a logarithmic axis, a bar of each kind in each group."""
    width = 0.8 / len(bars)
    for index, (name, values) in enumerate(bars.items()):
        shift = (index - (len(bars) - 1) / 2) * width
        drawn = axes.bar(
            [number + shift for number in range(len(labels))],
            values,
            width=0.92 * width,
            color=colors[name],
            label=name,
        )
        axes.bar_label(drawn, fmt=write_label, fontsize=7, padding=1)
    axes.set_yscale("log")
    # Each bar has its number, so minor ticks need none.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.2)


def write_label(value: float) -> str:
    """Write two significant digits: 2500, and not 2.5e+03."""
    return f"{float(f'{value:.2g}'):g}"


def save_bars(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    labels: Sequence[str],
    colors: Mapping[str, str],
    *,
    size: tuple[float, float],
    num_columns: int,
) -> None:
    """Draw panels of grouped bars into a PNG file.

    Args:
      panels: title of a panel -> kind of a bar -> its value in each group.
      labels: names of the groups.
      colors: kind of a bar -> its color.
      size: width and height in inches.
    """
    with open_figure(path, size) as figure:
        num_rows = -(-len(panels) // num_columns)
        drawn = figure.subplots(
            num_rows, num_columns, squeeze=False, sharex="col", sharey="row"
        )
        for axes, (name, bars) in zip(drawn.flat, panels.items()):
            dress(axes, name)
            draw_bars(axes, labels, bars, colors)
        write_title(figure, title)
        add_legend(figure)
