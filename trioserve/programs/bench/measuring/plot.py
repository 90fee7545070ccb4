"""Plots: one style for all benches, whiskers, logarithmic axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    # A label of a user may hold dollars, but is not a formula.
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


def list_whiskers(durations: Sequence[Spread]) -> tuple[list[float], list[list[float]]]:
    """List medians, and the whiskers from them up to p99, in milliseconds."""
    above = [1000 * (each.p99 - each.median) for each in durations]
    return [1000 * each.median for each in durations], [[0.0] * len(above), above]
