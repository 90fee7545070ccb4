"""Plots: one style for all benches, bars in groups, whiskers, logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
import warnings

from .statistics import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette: colour-blind readers can tell its colours apart.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
INK = "#333333"
COLORS = (BLUE, VERMILION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", INK)

GREY = "#777777"

# Shapes of markers that are told apart when they are small.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Above this place in viridis, lines on white paper are hard to see.
_PALEST = 0.8

STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    # A label of a user may hold dollars, and is no formula.
    "text.parse_math": False,
}


@contextmanager
def open_figure(path: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Open a figure of so many inches; at the end it is saved as a PNG file."""
    # The import takes half a second, and a run without a plot does not need it.
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        # A Figure made without pyplot draws with Agg, and pyplot does not keep it.
        figure = Figure(figsize=size, dpi=150)
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08, wspace=0.03)
        yield figure
        with warnings.catch_warnings():
            # A name may have characters that the font lacks; boxes stand for them.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(path, format="png")


def choose_colors(count: int) -> list[str]:
    """Return so many colors that are told apart by lightness alone.

    So colour-blind readers can tell them apart, too, and so does a print without colors.

    Source: viridis, by van der Walt and Smith 2015; its bright end is too pale for white paper.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if count == 1:
        return [BLUE]
    steps = [_PALEST * index / (count - 1) for index in range(count)]
    return [to_hex(colormaps["viridis"](step)) for step in steps]


def write_title(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)


def add_legend(figure: Figure) -> None:
    """Add a legend below all panels, with each label of the first panel once."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles))
    if by_label:
        figure.legend(
            list(by_label.values()),
            list(by_label),
            loc="outside lower center",
            ncols=7,
            frameon=False,
        )


def dress(axes: Axes, title: str, *, along: Literal["x", "y"] = "y") -> None:
    """Give a panel its title, and a grid along the axis of its figures."""
    axes.set_title(title, loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=along, color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def label_log_axis(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis from `low` to `high` with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


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


def list_whiskers(durations: Sequence[Spread]) -> tuple[list[float], list[list[float]]]:
    """List medians, and the whiskers from them up to p99, in milliseconds."""
    above = [1000 * (each.p99 - each.median) for each in durations]
    return [1000 * each.median for each in durations], [[0.0] * len(above), above]


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
