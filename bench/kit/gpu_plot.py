"""The picture of bench/gpu.py: shares of the device's bounds, and the times of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.bars import COLORS

from trioserve.programs.bench.measuring.plot import (
    GREY,
    INK,
    dress,
    label_log_axis,
    open_figure,
    write_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A variant with its shape, a decode or prefill, its seconds, and its share of the bound.
Row = tuple[str, str, float, float]

_MARKERS = "osD^vP<>X"


def save_plot(
    results: Mapping[str, Any],
    rows: Sequence[Row],
    aims: Mapping[str, float],
    path: Path,
) -> None:
    """Save the picture, with a panel for each shape and one for streams."""
    shapes = list(dict.fromkeys(title.partition(":")[0] for title, *_ in rows))
    parts = results["parts"]
    streams = {
        f"{title.partition(':')[0]} {kind}": level
        for title, figures in parts.items()
        for kind, level in figures.get("streams", {}).items()
    }
    num_panels = max(1, len(shapes) + bool(streams))
    with open_figure(path, (5.2 * num_panels, 4.6)) as figure:
        panels = figure.subplots(1, num_panels, squeeze=False)[0]
        known: dict[str, Any] = {}
        for axes, shape in zip(panels, shapes):
            known |= _draw_shares(axes, shape, rows, aims)
        if known:
            figure.legend(
                list(known.values()),
                list(known),
                loc="outside lower left",
                ncols=9,
                frameon=False,
            )
        if streams:
            _draw_streams(panels[-1], streams)
        write_title(figure, _write_head(parts))


def _write_head(parts: Mapping[str, Any]) -> str:
    rates = parts.get("rates")
    head = "bench/gpu.py" if rates is None else f"{rates['device']}"
    idle = [
        f"{title} idle {figures['idle']:.1%}"
        for title, figures in parts.items()
        if "idle" in figures
    ]
    return ";  ".join([head, *idle])


def _draw_shares(
    axes: Axes, shape: str, rows: Sequence[Row], aims: Mapping[str, float]
) -> dict[str, Any]:
    """Draw a row of points for each decode and prefill; return a sign for each variant."""
    mine = [row for row in rows if row[0].startswith(f"{shape}: ")]
    works = list(dict.fromkeys(work for _, work, *_ in mine))
    # A variant has the same sign in all panels.
    names = list(dict.fromkeys(title.partition(": ")[2] for title, *_ in rows))
    signs = {}
    for index, name in enumerate(names):
        points = [
            (100 * share, works.index(work))
            for title, work, _, share in mine
            if title == f"{shape}: {name}"
        ]
        if not points:
            continue
        signs[name] = axes.scatter(
            [share for share, _ in points],
            [place for _, place in points],
            color=COLORS[index % len(COLORS)],
            marker=_MARKERS[index % len(_MARKERS)],
            s=34,
            alpha=0.85,
            zorder=3,
        )
    for place, work in enumerate(works):
        if work in aims:
            aim = 100 * aims[work]
            axes.plot([aim, aim], [place - 0.35, place + 0.35], color=INK, linewidth=2)
    axes.set_yticks(range(len(works)), works)
    axes.set_ylim(len(works) - 0.5, -0.5)
    axes.set_xlim(0, max([100.0, *(105 * share for *_, share in mine)]))
    axes.set_xlabel("% of what the device allows; black: the aim")
    dress(axes, f"{shape}: decodes and prompts", along="x")
    return signs


def _draw_streams(axes: Axes, streams: Mapping[str, Any]) -> None:
    """Draw a line from the median to the 99th percentile of each time, in milliseconds."""
    spans = [
        (f"{kind}\n{name.replace('_', ' ')}", [1e3 * each for each in level[name]])
        for kind, level in streams.items()
        for name in ("first_token", "between_tokens")
        if level[name] is not None
    ]
    for place, (_, (median, p99)) in enumerate(spans):
        axes.plot([median, p99], [place, place], color=GREY, linewidth=2, zorder=2)
        axes.scatter([median], [place], color=COLORS[0], s=34, zorder=3)
        axes.annotate(
            f"{median:.3g} / {p99:.3g}",
            (median, place),
            xytext=(0, 6),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set_xscale("log")
    times = [time for _, pair in spans for time in pair]
    low, high = min(times) / 1.5, max(times) * 1.5
    axes.set_xlim(low, high)
    label_log_axis(axes.xaxis, low, high)
    axes.set_yticks(range(len(spans)), [label for label, _ in spans])
    axes.set_ylim(len(spans) - 0.5, -0.7)
    axes.set_xlabel("ms: median (point) to 99th percentile")
    speed = sum(level["tokens_per_second"] for level in streams.values())
    clients = sum(level["clients"] for level in streams.values())
    dress(axes, f"{clients} streams over HTTP: {speed:,.0f} tokens/s", along="x")
