"""Draws the stages' time: a row a stage, a bar a step.

It needs matplotlib, which only `trioserve[simulate]` brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfig
from .record import Bar, Record, StepKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: dict[StepKind, str] = {
    "chunk": "#4c78a8",
    "mixed": "#b07aa1",
    "decode": "#f2a541",
}
_MEANINGS: dict[StepKind, str] = {
    "chunk": "chunks of prompts (request.chunk)",
    "mixed": "both",
    "decode": "decoding",
}
_WIDTH_INCHES = 14.0
_ROW_INCHES = 0.55
_BAR_HEIGHT = 0.8
_FONT_POINTS = 7.0
# Of a digit in matplotlib's own font, as a share of its height.
_DIGIT_WIDTH = 0.64
# Beyond so many, lines from the last stage to the first are a grey curtain.
_MAX_LINES = 150


def check_matplotlib() -> None:
    """Refuse before anything is simulated.

    Raises:
      InvalidConfig: it is not there.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidConfig(
            "timeline", "needs matplotlib: pip install 'trioserve[simulate]'"
        ) from error


def draw_timeline(
    record: Record,
    path: Path,
    *,
    num_stages: int,
    title: str,
    window: tuple[float, float] | None = None,
) -> None:
    """Draw what stages did into a .png or .svg.

    Args:
      window: first and last second that are drawn.

    Raises:
      InvalidConfig: the file cannot be written, or the window has nothing in it.
    """
    begin, end = window or (0.0, max((bar.end for bar in record.bars), default=0.0))
    bars = [bar for bar in record.bars if bar.begin < end and bar.end > begin]
    if not bars:
        raise InvalidConfig("timeline_window", "no stage is at work in these seconds")
    # Not pyplot, which would look for a display.
    from matplotlib.figure import Figure

    height = 1.5 + _ROW_INCHES * num_stages
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(begin, end)
    axes.set_ylim(num_stages - 0.45, -0.55)
    for kind in _COLOURS:
        _draw_bars(axes, [bar for bar in bars if bar.kind == kind], kind)
    _draw_labels(axes, bars, begin, end)
    _draw_answers(axes, record, num_stages, begin, end)
    _draw_frame(axes, bars, num_stages, begin, end)
    axes.set_title(title, fontsize=10, loc="left")
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise InvalidConfig("timeline", f"cannot write {path}: {error}") from error


def _draw_bars(axes: Axes, bars: list[Bar], kind: StepKind) -> None:
    for stage in {bar.stage for bar in bars}:
        axes.broken_barh(
            [(bar.begin, bar.end - bar.begin) for bar in bars if bar.stage == stage],
            (stage - _BAR_HEIGHT / 2, _BAR_HEIGHT),
            facecolors=_COLOURS[kind],
            edgecolors="white",
            linewidth=0.4,
        )


def _draw_labels(axes: Axes, bars: list[Bar], begin: float, end: float) -> None:
    # What the axes leave of the width, about.
    points_per_second = 0.9 * 72 * _WIDTH_INCHES / (end - begin)
    for bar in bars:
        middle = (max(bar.begin, begin) + min(bar.end, end)) / 2
        room = (min(bar.end, end) - max(bar.begin, begin)) * points_per_second
        if label := _choose_label(bar, room):
            axes.text(
                middle,
                bar.stage,
                label,
                ha="center",
                va="center",
                color="white",
                fontsize=_FONT_POINTS,
            )


def _choose_label(bar: Bar, room: float) -> str:
    """Name as many of a bar's chunks as there is room for, one a line."""
    names = [f"{request}.{chunk}" for request, chunk in bar.chunks]
    max_lines = int(_BAR_HEIGHT * _ROW_INCHES * 72 / (1.3 * _FONT_POINTS))
    if len(names) > max_lines:
        names = [*names[: max_lines - 1], f"+{len(names) - max_lines + 1}"]
    longest = max(map(len, names), default=0)
    is_room = (longest + 1) * _DIGIT_WIDTH * _FONT_POINTS <= room
    return "\n".join(names) if is_room else ""


def _draw_answers(
    axes: Axes, record: Record, num_stages: int, begin: float, end: float
) -> None:
    """Draw the tokens that went back, from when they were sampled to when they were read."""
    lines = [
        message
        for message in record.messages
        if message.exchange.what == "sampled"
        and message.sent_at < end
        and message.taken_at > begin
    ]
    if len(lines) > _MAX_LINES:
        return
    for message in lines:
        axes.plot(
            [message.sent_at, message.taken_at],
            [num_stages - 1 - _BAR_HEIGHT / 2, _BAR_HEIGHT / 2],
            color="#333333",
            linewidth=0.8,
            # Behind the bars, whose labels they would cross.
            zorder=0,
        )


def _draw_frame(
    axes: Axes, bars: list[Bar], num_stages: int, begin: float, end: float
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes.set_yticks(range(num_stages), [f"stage {k}" for k in range(num_stages)])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    for stage in range(num_stages):
        busy = sum(
            min(bar.end, end) - max(bar.begin, begin)
            for bar in bars
            if bar.stage == stage
        )
        axes.text(
            1.005,
            stage,
            f"{busy / (end - begin):.0%}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
        )
    handles: list[Any] = [
        Patch(color=_COLOURS[kind], label=_MEANINGS[kind]) for kind in _COLOURS
    ]
    handles.append(
        Line2D([], [], color="#333333", linewidth=0.8, label="sampled tokens")
    )
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        fontsize=8,
        frameon=False,
    )
