"""Files of results are checked before a run, and nothing that was measured is lost with them."""

from __future__ import annotations

from dataclasses import replace
import json
from pathlib import Path
import resource
import signal
import subprocess

import pytest
import trio
from warm_start import FORK

from trioserve.__main__ import main
from trioserve.errors import InvalidConfig
from trioserve.programs.bench.config import ResultsConfig
from trioserve.programs.bench.generation.figures import Report
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.generation.measure import measure
from trioserve.programs.bench.generation.plot import save_plot
from trioserve.programs.bench.measuring.measured_servers import read_servers
from trioserve.programs.bench.measuring.report import save
from trioserve.testing.server import open_fake_server

LOAD = Load(concurrency=(1, 2), requests=2, warmup=0, input_words=2, output_tokens=3)
FLAGS = (
    "--concurrency 1 2 --requests 2 --warmup 0 --input-words 2 --output-tokens 3"
).split()


@pytest.fixture
async def report(tokenizer_folder: Path) -> Report:
    with trio.fail_after(60):
        async with open_fake_server(tokenizer_folder) as server:
            return await measure(LOAD, read_servers([f"fake={server.url}"]))


COMMAND = [*FORK, "-m", "trioserve", "bench", "serve"]


async def test_figures_are_printed_if_their_files_cannot_be_written(
    tokenizer_folder: Path,
) -> None:
    files = ["--json", "/dev/full", "--plot", "/dev/full"]
    async with open_fake_server(tokenizer_folder) as server:
        command = [*COMMAND, "--url", f"fake={server.url}", *FLAGS, *files]
        with trio.fail_after(60):
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False
            )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 2
    assert "tok/s" in out and f"fake: {server.url}" in out
    assert err == (
        "trioserve: --json: cannot write /dev/full: No space left on device\n"
        "trioserve: --plot: cannot write /dev/full: No space left on device\n"
    )


async def test_an_interrupted_run_shows_the_rounds_that_have_ended(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    flags = ["--concurrency", "1", "2", "--duration", "1.5", "--warmup", "0"]
    flags += ["--input-words", "2", "--output-tokens", "3", "--json", str(saved)]
    async with open_fake_server(tokenizer_folder, step_seconds=0.02) as server:
        with trio.fail_after(60):
            process = await trio.lowlevel.open_process(
                [*COMMAND, "--url", server.url, *flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            # Two sequences in a step belong to the second level.
            while all(len(plan.rows) < 2 for plan in server.device.plans):
                await trio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            await process.wait()
            assert process.stdout is not None and process.stderr is not None
            out = b"".join([part async for part in process.stdout]).decode()
            await process.stderr.aclose()
    assert process.returncode == 130
    assert "cut short by --timeout 900 s or by Ctrl-C" in out
    [measured] = json.loads(saved.read_bytes())["servers"]
    assert [level["concurrency"] for level in measured["levels"]] == [1]


def test_a_file_is_tried_before_the_run(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.png"
    old.write_text("old")
    ResultsConfig(json=str(new), plot=str(old)).check_writable()
    assert not new.exists() and old.read_text() == "old"
    with pytest.raises(InvalidConfig, match="--json: cannot write /proc/x: No such"):
        ResultsConfig(json="/proc/x").check_writable()


def test_a_full_disk_is_found_before_the_run(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The largest file that this process may write; a disk is full in the same way.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for path in (old, tmp_path / "new.json"):
            with pytest.raises(InvalidConfig, match="cannot write .*: File too large"):
                ResultsConfig(json=str(path)).check_writable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert old.read_text() == "old" and not (tmp_path / "new.json").exists()


def test_a_wrong_file_is_told_before_any_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "http://127.0.0.1:1"
    assert main(["bench", "serve", "--url", url, "--plot", "/proc/x.png"]) == 2
    assert capsys.readouterr().err.startswith("trioserve: --plot: cannot write /proc/x")


async def test_a_server_has_one_color_in_all_panels(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    [server] = report.servers
    names = [f"$x^ {number}" for number in range(6)]
    servers = tuple(replace(server, label=name) for name in names)
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    save_plot(replace(report, servers=servers), tmp_path / "plot.png")
    [figure] = drawn
    by_panel = [
        [line.get_color() for line in axes.lines if line.get_linestyle() == "-"]
        for axes in figure.axes
    ]
    [throughput, _, health] = by_panel
    colors = throughput[: len(names)]
    assert len(set(colors)) == len(names)
    for panel in by_panel:
        seen = dict.fromkeys(each for each in panel if each in colors)
        assert list(seen) == colors
    # Grey values of a print, by the weights of ITU-R BT.709.
    greys = [
        0.2126 * red + 0.7152 * green + 0.0722 * blue
        for red, green, blue in map(to_rgb, colors)
    ]
    assert greys == sorted(greys) and greys[-1] < 0.75
    assert min(after - before for before, after in zip(greys, greys[1:])) > 0.05


async def test_a_name_that_the_font_lacks_is_drawn(
    report: Report, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    [server] = report.servers
    named = replace(report, servers=(replace(server, label="例え.jp"),))
    save_plot(named, tmp_path / "plot.png")
    assert not [each for each in recwarn if "Glyph" in str(each.message)]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


async def test_results_cannot_control_the_terminal(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [server] = report.servers
    path = tmp_path / "evil.json"
    evil = replace(server, model="\x1b[2J", label="\x1b]0;")
    save(path, replace(report, servers=(evil,)))
    assert main(["bench", "serve", "--compare", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert json.loads(path.read_bytes())["servers"][0]["model"] == "\x1b[2J"
