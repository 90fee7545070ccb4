"""The picture of a simulation agrees with its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from trioserve import __main__ as command
from trioserve.programs.simulate import Bar
from trioserve.programs.simulate.record import Record
from trioserve.programs.simulate.rows import choose_edge, choose_label, mix_columns
from trioserve.programs.simulate.timeline import draw_timeline

ORANGE = np.array((0xF2, 0xA5, 0x41)) / 255
GREY = np.array((0xEC, 0xEC, 0xEC)) / 255


def make_bars(num_bars: int, *, share: float = 1.0) -> list[Bar]:
    """Return bars of one stage in equal slots; each fills `share` of its slot."""
    return [
        Bar(
            stage=0,
            step_id=number,
            kind="decode",
            begin=number / num_bars,
            end=(number + share) / num_bars,
            num_tokens=1,
            chunks=(),
        )
        for number in range(num_bars)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("num_bars", [1, 1500])
def test_a_stage_that_never_rests_has_the_colour_of_its_steps(
    tmp_path: Path, num_bars: int
) -> None:
    from matplotlib.image import imread

    path = tmp_path / "busy.png"
    draw_timeline(
        Record(bars=make_bars(num_bars)),
        path,
        num_stages=1,
        title="",
        window=(0.0, 1.0),
    )
    pixels = imread(path)
    is_orange = np.abs(pixels[:, :, :3] - ORANGE).max(axis=2) < 0.1
    # The line of pixels through the middle of the row; other lines are frame.
    widest = is_orange.sum(axis=1).max()
    # Edges take at most a sixth of a bar that is wide enough for edges.
    assert widest > (1 - 1 / 6) * 0.85 * pixels.shape[1]


@pytest.mark.parametrize("bar_points", [0.01, 0.5, 1.9, 2.0, 3.0, 5.0, 500.0])
def test_edges_take_a_sixth_of_a_bar_at_most(bar_points: float) -> None:
    edge = choose_edge(bar_points)
    assert 0 <= edge <= bar_points / 6
    assert (edge > 0) == (bar_points >= 2)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_columns_of_narrow_steps_are_as_pale_as_the_stage_is_idle(
    share: float,
) -> None:
    colours = mix_columns(make_bars(5000, share=share), 0.0, 1.0, 100)
    expected = share * ORANGE + (1 - share) * GREY
    assert np.allclose(colours, expected)


def test_columns_outside_of_all_steps_are_idle() -> None:
    colours = mix_columns(make_bars(10), -1.0, 3.0, 4)
    assert np.allclose(colours, [GREY, ORANGE, GREY, GREY])
    assert np.allclose(mix_columns([], 0.0, 1.0, 2), [GREY, GREY])


def test_a_narrow_bar_names_its_chunk_upright() -> None:
    (bar,) = make_bars(1)
    bar = replace(bar, chunks=((3, 12),))
    assert choose_label(bar, line_points=15, lines_points=32) == ""
    assert choose_label(bar, line_points=32, lines_points=15) == "3.12"
    assert choose_label(bar, line_points=32, lines_points=5) == ""


@pytest.mark.slow
def test_picture_and_table_agree_on_how_busy_stages_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first request comes late, and steps go on after the last token."""
    import matplotlib

    path = tmp_path / "timeline.svg"
    flags = ["--requests", "3", "--rate", "2", "--prompt-tokens", "600", "2000"]
    flags += ["--output-tokens", "2", "20", "--timeline", str(path)]
    # Otherwise letters would be drawn as curves.
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        code = command.main(["simulate", *flags])
    assert code == 0
    (table,) = re.findall(r"stages at work +(.+)", capsys.readouterr().out)
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    texts = [text.strip() for text in root.itertext()]
    assert [text for text in texts if text.endswith("%")] == table.split()
