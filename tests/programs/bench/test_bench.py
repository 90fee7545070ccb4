"""`trioserve bench` measures by a schedule, and explains the first mistakes."""

from __future__ import annotations

import json
from pathlib import Path
import statistics

import pytest
import trio

from trioserve.__main__ import main
from trioserve.config import build_config
from trioserve.errors import InvalidConfig
from trioserve.programs.bench.generation.arrivals import (
    Arrival,
    draw_arrivals,
    read_trace,
)
from trioserve.programs.bench.generation.figures import Report
from trioserve.programs.bench.generation.load import Load
from trioserve.programs.bench.generation.measure import measure
from trioserve.programs.bench.generation.plot import save_plot
from trioserve.programs.bench.generation.table import render_report
from trioserve.programs.bench.measuring.measured_servers import read_servers
from trioserve.programs.bench.throughput import ThroughputConfig, measure_throughput
from trioserve.programs.http.client import RequestRefused
from trioserve.testing.models import save_tiny_model
from trioserve.testing.server import open_fake_server
from trioserve.testing.tokenizer import tiny_tokenizer


def test_arrivals_have_the_rate_and_are_repeated() -> None:
    arrivals = list(draw_arrivals(4.0, 4000, None, 1))
    assert arrivals == list(draw_arrivals(4.0, 4000, None, 1))
    assert arrivals != list(draw_arrivals(4.0, 4000, None, 2))
    dues = [each.due for each in arrivals]
    gaps = [after - before for before, after in zip([0.0, *dues], dues)]
    # A Poisson process has gaps whose deviation is their mean.
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)


def test_a_duration_ends_the_arrivals() -> None:
    dues = [each.due for each in draw_arrivals(10.0, None, 5.0, 1)]
    assert 20 < len(dues) < 90 and max(dues) < 5


def test_a_trace_is_sorted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("# seconds, words, tokens\n\n0.5, 10, 4\n0,20,5\n")
    assert read_trace(str(path)) == (
        Arrival(due=0.0, input_words=20, output_tokens=5),
        Arrival(due=0.5, input_words=10, output_tokens=4),
    )


@pytest.mark.parametrize("text", ["", "1,2\n", "a,2,3\n", "1,0,3\n", "-1,2,3\n"])
def test_a_wrong_trace_is_explained(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match="--trace: "):
        read_trace(str(path))


async def run(tokenizer_folder: Path, load: Load) -> Report:
    with trio.fail_after(60):
        async with open_fake_server(tokenizer_folder) as server:
            return await measure(load, read_servers([f"fake={server.url}"]))


async def test_requests_are_sent_when_they_are_due(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    load = Load(
        request_rate=(50.0, 200.0),
        requests=20,
        input_words=2,
        output_tokens=3,
        slo_ttft=60.0,
    )
    report = await run(tokenizer_folder, load)
    (server,) = report.servers
    assert [level.rate for level in server.levels] == [50.0, 200.0]
    for level in server.levels:
        assert level.clients.num_requests == 20 and level.output_tokens == 60
        assert level.late is not None and level.late.count == 20
        assert level.goodput == pytest.approx(level.requests_per_second)
    text = render_report(report)
    assert "req/s due" in text and "within the bounds" in text
    save_plot(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


async def test_no_answer_is_good_if_all_are_too_late(tokenizer_folder: Path) -> None:
    load = Load(
        concurrency=(2,), requests=4, input_words=2, output_tokens=3, slo_ttft=1e-9
    )
    (server,) = (await run(tokenizer_folder, load)).servers
    assert server.levels[0].goodput == 0 and server.levels[0].rate is None


async def test_a_trace_is_replayed(tokenizer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("0,2,3\n0.01,3,5\n")
    (server,) = (
        await run(tokenizer_folder, Load(trace=str(path), input_words=2))
    ).servers
    assert server.levels[0].output_tokens == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve"], "--url: is missing"),
        (["serve", "--url", "127.0.0.1"], "--url: '127.0.0.1' is not"),
        (
            ["serve", "--url", "http://127.0.0.1:1"],
            "127.0.0.1:1 (http://127.0.0.1:1): no server answers: Connection refused",
        ),
        (["serve", "http://127.0.0.1:1"], "write --url http://127.0.0.1:1"),
        (["serve", "--url", "http://a", "http://a"], "; write LABEL=URL for each"),
        (["serve", "--compare", "no.json"], "--compare: "),
        (["serve", "--url", "http://a", "--plot", "no/p.png"], "--plot: no is not a"),
        (["serve", "--concurrency", "0"], "--concurrency: takes"),
        (
            ["serve", "--concurrency", "1,2"],
            "'1,2' is not a list of whole numbers with",
        ),
        (["serve", "--url", "http://a", "--trace", "no.csv"], "--trace: cannot read"),
        (
            ["serve", "--url", "http://a", "--concurrency", "1", "--request-rate", "1"],
            "--concurrency: and --request-rate exclude each other",
        ),
        (
            ["serve", "--url", "http://a", "--api-key-file", "no"],
            "--api-key-file: cannot read no",
        ),
        (["throughput", "--requests", "0"], "--requests: must be at least 1"),
        (["throughput", "/no/such"], "/no/such"),
    ],
)
def test_a_mistake_is_explained(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("trioserve: ") and sentence in text
    assert text.count("\n") == 1


@pytest.mark.slow
async def test_an_engine_is_measured_without_http(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_tiny_model("llama", model, vocab_size=512, max_position_embeddings=128)
    tiny_tokenizer(model)
    config = build_config(
        ThroughputConfig,
        {
            **{"model": str(model), "num_threads": 1, "engine_process": False},
            **{"requests": 4, "input_tokens": 8, "output_tokens": 4, "rounds": 2},
            "as_json": True,
        },
    )
    with trio.fail_after(60):
        found = await measure_throughput(config)
    figures = json.loads(found.describe())
    assert len(figures["seconds_by_round"]) == 2
    assert figures["total_tokens_per_second"] == pytest.approx(
        3 * figures["output_tokens_per_second"]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "http://127.0.0.1:99999"],
        ["--url", "http://[::1", "--label", "x"],
        ["--url", "http://user:sekret@127.0.0.1:1"],
        ["--url", "http://127.0.0.1:1/a b"],
        ["--url", "http://127.0.0.1:1", "--api-key", "ä"],
        ["--url", "http://127.0.0.1:1", "--json", "/tmp"],
    ],
)
def test_a_wrong_address_key_or_file_is_told_before_the_run(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["bench", "serve", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("trioserve: ") and text.count("\n") == 1
    assert "sekret" not in text and "no server answers" not in text


def test_a_refusal_cannot_control_the_terminal() -> None:
    text = str(RequestRefused(400, b"\x1b[2J{}"))
    assert text == "HTTP 400: \\x1b[2J{}"
    assert str(RequestRefused(401, b"no")).endswith("; --api-key-file gives a key")
