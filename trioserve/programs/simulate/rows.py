"""The row of one stage in the picture.

Steps that are too narrow for a bar are drawn as columns of pixels, and each column has
the mixed colour of its steps. Narrow bars would show only their edges; without edges
they would be rounded to whole pixels: some to none and some to two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .record import Bar, StepKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    import numpy as np
    from numpy.typing import NDArray

COLOURS: dict[StepKind, str] = {
    "chunk": "#4c78a8",
    "mixed": "#b07aa1",
    "decode": "#f2a541",
}
IDLE_COLOUR = "#ececec"
WIDTH_INCHES = 14.0
ROW_INCHES = 0.55
DOTS_PER_INCH = 130
BAR_HEIGHT = 0.8
# Four pixels: in a narrower bar, the edges would hide the colour.
_MIN_BAR_POINTS = 2.0
_EDGE_POINTS = 0.4
# Edges of more than a sixth of a bar would make its colour pale.
_MAX_EDGE_SHARE = 1 / 6
_FONT_POINTS = 7.0
_LINE_POINTS = 1.3 * _FONT_POINTS
# The width of a digit in matplotlib's own font, as a part of its height.
_DIGIT_POINTS = 0.64 * _FONT_POINTS
_BAR_HEIGHT_POINTS = BAR_HEIGHT * ROW_INCHES * 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The seconds that are drawn, and their width in the picture."""

    begin: float
    end: float

    def count_points(self, bar: Bar) -> float:
        """Return the width of the visible part of a bar, in points."""
        seconds = min(bar.end, self.end) - max(bar.begin, self.begin)
        # The axes take about a tenth of the width.
        return seconds * 0.9 * 72 * WIDTH_INCHES / (self.end - self.begin)

    def find_middle(self, bar: Bar) -> float:
        return (max(bar.begin, self.begin) + min(bar.end, self.end)) / 2


def choose_edge(bar_points: float) -> float:
    """Return the width of a bar's edge; 0 if the bar is too narrow to be drawn alone."""
    if bar_points < _MIN_BAR_POINTS:
        return 0.0
    return min(_EDGE_POINTS, _MAX_EDGE_SHARE * bar_points)


def mix_columns(
    bars: Sequence[Bar], begin: float, end: float, num_columns: int
) -> NDArray[np.float64]:
    """Return the colours of a stage's columns, (num_columns, 3) red, green and blue.

    Each kind of step colours a column by its part of the column's seconds.

    Args:
      bars: of one stage, in order.
    """
    from matplotlib.colors import to_rgb
    import numpy as np

    idle = np.array(to_rgb(IDLE_COLOUR))
    edges = np.linspace(begin, end, num_columns + 1)
    colours = np.tile(idle, (num_columns, 1))
    for kind, colour in COLOURS.items():
        shares = _measure_shares([bar for bar in bars if bar.kind == kind], edges)
        colours += shares[:, None] * (np.array(to_rgb(colour)) - idle)
    return colours.clip(0, 1)


def _measure_shares(
    bars: Sequence[Bar], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the part of each column that bars cover, (num_edges - 1,)."""
    import numpy as np

    if not bars:
        return np.zeros(len(edges) - 1)
    times = np.array([(bar.begin, bar.end) for bar in bars])
    after = np.cumsum(times[:, 1] - times[:, 0])
    before = np.concatenate(([0.0], after[:-1]))
    worked = np.interp(edges, times.ravel(), np.stack((before, after), 1).ravel())
    shares: NDArray[np.float64] = np.diff(worked) / np.diff(edges)
    return shares


def draw_row(axes: Axes, bars: Sequence[Bar], stage: int, scale: Scale) -> None:
    """Draw the steps of a stage.

    Args:
      bars: of that stage, in order.
    """
    edges = {bar.step_id: choose_edge(scale.count_points(bar)) for bar in bars}
    narrow = [bar for bar in bars if not edges[bar.step_id]]
    num_columns = int(WIDTH_INCHES * DOTS_PER_INCH)
    axes.imshow(
        mix_columns(narrow, scale.begin, scale.end, num_columns)[None],
        extent=(
            *(scale.begin, scale.end),
            *(stage + BAR_HEIGHT / 2, stage - BAR_HEIGHT / 2),
        ),
        aspect="auto",
        zorder=1,
    )
    wide = [bar for bar in bars if edges[bar.step_id]]
    axes.broken_barh(
        [(bar.begin, bar.end - bar.begin) for bar in wide],
        (stage - BAR_HEIGHT / 2, BAR_HEIGHT),
        facecolors=[COLOURS[bar.kind] for bar in wide],
        edgecolors="white",
        linewidth=[edges[bar.step_id] for bar in wide],
        zorder=2,
    )
    for bar in wide:
        _draw_label(axes, bar, scale)


def _draw_label(axes: Axes, bar: Bar, scale: Scale) -> None:
    width, height = scale.count_points(bar), _BAR_HEIGHT_POINTS
    across = choose_label(bar, line_points=width, lines_points=height)
    # A bar as wide as a line of text has room for an upright label.
    label = across or choose_label(bar, line_points=height, lines_points=width)
    axes.text(
        scale.find_middle(bar),
        bar.stage,
        label,
        rotation=0 if across else 90,
        ha="center",
        va="center",
        color="white",
        fontsize=_FONT_POINTS,
    )


def choose_label(bar: Bar, *, line_points: float, lines_points: float) -> str:
    """Name as many chunks of a bar as there is room for, one on each line.

    Args:
      line_points: the room for the length of a line.
      lines_points: the room for all lines, one above the other.
    """
    names = [f"{request}.{chunk}" for request, chunk in bar.chunks]
    max_lines = int(lines_points / _LINE_POINTS)
    if len(names) > max_lines:
        names = [*names[: max_lines - 1], f"+{len(names) - max_lines + 1}"]
    longest = max(map(len, names), default=0)
    is_room = max_lines > 0 and (longest + 1) * _DIGIT_POINTS <= line_points
    return "\n".join(names) if is_room else ""
