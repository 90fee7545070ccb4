"""Draw the work of stages over time: a row for each stage, a bar for each step.

This needs matplotlib, which only `trioserve[simulate]` installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InvalidConfig, needing_extra
from .record import Record, StepKind
from .rows import (
    BAR_HEIGHT,
    COLOURS,
    DOTS_PER_INCH,
    IDLE_COLOUR,
    ROW_INCHES,
    WIDTH_INCHES,
    Scale,
    draw_row,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEANINGS: dict[StepKind, str] = {
    "chunk": "chunks of prompts (request.chunk)",
    "mixed": "both",
    "decode": "decoding",
}
# More lines from the last stage to the first would cover the picture.
_MAX_LINES = 150


def check_matplotlib() -> None:
    """Check that matplotlib is installed, before anything is simulated.

    Raises:
      MissingExtra: it is not.
    """
    with needing_extra("simulate", "--timeline"):
        import_module("matplotlib")


def draw_timeline(
    record: Record,
    path: Path,
    *,
    num_stages: int,
    title: str,
    window: tuple[float, float],
) -> None:
    """Draw the record of a simulation to a .png or .svg file.

    Args:
      window: first and last second that are drawn.

    Raises:
      InvalidConfig: the file cannot be written, or the window has nothing in it.
    """
    begin, end = window
    bars = [bar for bar in record.bars if bar.begin < end and bar.end > begin]
    if not bars:
        raise InvalidConfig("timeline_window", "no stage is at work in these seconds")
    # Not pyplot, which would look for a display.
    from matplotlib.figure import Figure

    height = 1.5 + ROW_INCHES * num_stages
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.add_subplot()
    scale = Scale(begin=begin, end=end)
    for stage in range(num_stages):
        draw_row(axes, [bar for bar in bars if bar.stage == stage], stage, scale)
    _draw_answers(axes, record, num_stages, scale)
    _draw_frame(axes, record.measure_utilization(num_stages, begin, end))
    axes.set_xlim(begin, end)
    axes.set_ylim(num_stages - 0.45, -0.55)
    axes.set_title(title, fontsize=10, loc="left")
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise InvalidConfig.of_file("timeline", "write", path, error) from error


def _draw_answers(axes: Axes, record: Record, num_stages: int, scale: Scale) -> None:
    """Draw a line for each return of tokens, from its sending to its receiving."""
    lines = [
        message
        for message in record.messages
        if message.transfer.what == "sampled"
        and message.sent_at < scale.end
        and message.taken_at > scale.begin
    ]
    if len(lines) > _MAX_LINES:
        return
    for message in lines:
        axes.plot(
            [message.sent_at, message.taken_at],
            [num_stages - 1 - BAR_HEIGHT / 2, BAR_HEIGHT / 2],
            color="#333333",
            linewidth=0.8,
            # Behind the rows, so that the lines do not cross their labels.
            zorder=0,
        )


def _draw_frame(axes: Axes, utilization: Sequence[float]) -> None:
    num_stages = len(utilization)
    axes.set_yticks(range(num_stages), [f"stage {k}" for k in range(num_stages)])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    for stage, share in enumerate(utilization):
        axes.text(
            1.005,
            stage,
            f"{share:.0%}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
        )
    _draw_legend(axes)


def _draw_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=COLOURS[kind], label=_MEANINGS[kind]) for kind in COLOURS
    ]
    handles.append(Patch(color=IDLE_COLOUR, label="idle"))
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
