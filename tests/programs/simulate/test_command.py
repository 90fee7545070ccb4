"""`trioserve simulate`: flags, exit codes, and the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path
import re
import sys
import textwrap

import pytest

from trioserve import __main__ as command
from trioserve.config import list_options
from trioserve.programs.simulate import SimulateConfig

SMALL = [
    *("--requests", "5", "--rate", "inf"),
    *("--prompt-tokens", "600", "2000", "--output-tokens", "2", "6"),
]


def test_help_has_a_line_for_each_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["simulate", "--help"])
    assert caught.value.code == 0
    shown = re.findall(r"^  --(?:\[no-\])?(\S+)", capsys.readouterr().out, re.M)
    options = [*list_options(SimulateConfig)]
    assert [f"--{name}" for name in shown] == [option.flag for option in options]
    assert all(option.meaning for option in options)


def test_it_prints_a_table_and_writes_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    assert command.main(["simulate", *SMALL, "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(path.read_text())
    assert lines[0].split() == ["requests", "5", "in", f"{figures['seconds']:.1f}", "s"]
    assert len(figures["utilization"]) == 4
    assert all(0.5 < share <= 1 for share in figures["utilization"])
    made, skipped = figures["num_exchanges"], figures["num_exchanges_skipped"]
    assert made + skipped == figures["num_steps"]
    assert skipped > 0
    assert f"{made} sent tokens back, {skipped} had none to send" in lines[-2]


@pytest.mark.slow
def test_the_documented_example_equals_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines.rst").read_text()
    found = re.search(r"\n    trioserve (simulate .+)\n\n((?:    .+\n)+)", page)
    assert found is not None
    assert command.main(found[1].split()) == 0
    assert textwrap.dedent(found[2]) == capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--prompt-tokens=5", "9"],
        ["--stage-weights", ".5", "1.", "007", "+2"],
        ["--stage-weights=.5", ".5", ".5", ".5"],
        ["--link-seconds", "0."],
        ["--trace", "None"],
    ],
)
def test_values_are_read_as_python_reads_them(flags: list[str]) -> None:
    assert command.main(["simulate", *SMALL, *flags]) == 0


def test_a_window_of_the_picture_may_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "timeline.png"
    flags = ["--timeline", str(path), "--timeline-window", "0.1", "0.2"]
    assert command.main(["simulate", *SMALL, *flags]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pipeline-parallel-size", "0"], "must be at least 1"),
        (["--rate", "0"], "must be greater than 0"),
        (["--step-seconds", "0", "--token-seconds", "0"], "a step takes some time"),
        (["--link-seconds", "inf"], "must be 0 or more"),
        (["--max-num-batched-tokens", "8"], "must be at least --max-num-seqs, 128"),
        (["--prompt-tokens", "9", "8"], "the shortest is longer than the longest"),
        (["--stage-weights", "1", "2"], "give one for each of 4 stages"),
        (["--stage-weights", "1", "2", "0", "1"], "each must be greater than 0"),
        (["--timeline", "x.bmp"], "must end in .png or .svg"),
        (["--output-tokens", "0", "8"], "must be at least 1"),
        (["--timeline-window", "2", "3"], "needs --timeline"),
        (
            ["--timeline", "x.png", "--timeline-window", "3", "2"],
            "the first second must come before the last",
        ),
        (
            ["--timeline", "x.png", "--timeline-window", "-1", "2"],
            "the first second must come before the last, and neither before 0",
        ),
        (["--kv-blocks", "10"], "tokens do not fit into 160"),
        (["--trace", "/nowhere"], "cannot read"),
        (["--json", "/nowhere/x"], "cannot write"),
        (["--timeline", "/nowhere/x.png"], "cannot write"),
        (
            ["--timeline", "/nowhere/x.png", "--timeline-window", "500", "600"],
            "no stage is at work",
        ),
        (["--rate", "fast"], "--rate: 'fast' is not a number"),
        (["--prompt-tokens", "1"], "--prompt-tokens: expected 2 values"),
        (["--prompt-tokens=1"], "--prompt-tokens: expected 2 values"),
        (
            ["--stage-weights", "1", "x"],
            "--stage-weights: '1 x' is not a list of numbers with blanks between",
        ),
    ],
)
def test_what_the_user_can_mend_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert command.main(["simulate", *SMALL, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("trioserve: --")
    assert error.count("\n") == 1


def test_a_picture_without_matplotlib_is_refused_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "x.png"
    assert command.main(["simulate", "--timeline", str(path)]) == 2
    assert "pip install 'trioserve[simulate]'" in capsys.readouterr().err
