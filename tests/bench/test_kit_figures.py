"""The kit's figures: percentiles, tables, saved reports, and probes of /health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.rounds import take_median_spread
from kit.runs import run_or_explain
import msgspec
import pytest
import trio

from trioserve.programs.bench.measuring import table
from trioserve.programs.bench.measuring.clients import ClientReport
from trioserve.programs.bench.measuring.measured_servers import read_servers
from trioserve.programs.bench.measuring.probe import HealthProbe
from trioserve.programs.bench.measuring.report import load_reports, number_labels
from trioserve.programs.bench.measuring.statistics import Spread, percentile, spread
from trioserve.programs.bench.measuring.texts import write_text


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([1.0, 2.0, 3.0], 50, 2.0),
        ([1.0, 2.0, 3.0], 100, 3.0),
        ([1.0, 2.0, 3.0], 0, 1.0),
        ([float(value) for value in range(101)], 99, 99.0),
        ([0.0, 10.0], 90, 9.0),
    ],
)
def test_percentiles_equal_numpys(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


def test_no_samples_have_no_spread() -> None:
    assert spread([]) is None


def test_the_spread_does_not_need_sorted_samples() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(
        median=2.0,
        p90=pytest.approx(2.8),
        p95=pytest.approx(2.9),
        p99=pytest.approx(2.98),
        maximum=3.0,
        count=3,
    )


def test_the_median_of_spreads_is_taken_for_each_percentile() -> None:
    one, other = spread([1.0, 3.0]), spread([3.0, 5.0, 9.0])
    seen = take_median_spread([one, None, other])
    assert (seen.median, seen.maximum, seen.count) == (3.5, 6.0, 5)
    assert take_median_spread([None]) is None


# Tables.


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0012345, "1.23"), (0.0123, "12.3"), (0.123, "123"), (None, "-")],
)
def test_milliseconds_have_three_digits(seconds: Any, expected: str) -> None:
    assert table.write_milliseconds(seconds) == expected


@pytest.mark.parametrize(
    ("over", "under", "expected"),
    [(1.0, 2.0, "0.50"), (40.0, 2.0, "20"), (1.0, 0.0, "-"), (None, 1.0, "-")],
)
def test_a_ratio_without_both_sides_is_a_dash(
    over: Any, under: Any, expected: str
) -> None:
    assert table.write_ratio(over, under) == expected


def test_doubts_name_each_failure() -> None:
    clients = ClientReport(
        num_requests=1,
        errors={"HTTP 503": 2},
        health=None,
        num_health_failures=3,
        cpu=0.9,
        lag=None,
    )
    assert list(clients.list_doubts()) == [
        "client cpu is high: the load generator may be the limit",
        "3 probes of /health failed",
        "2 x HTTP 503",
    ]


# Reports.


class Saved(msgspec.Struct):
    created: str


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text('{"created": 3}')
    with pytest.raises(ValueError, match="odd.json is not a saved result"):
        load_reports([path], Saved)


def test_a_repeated_label_gets_the_number_of_its_report() -> None:
    assert number_labels([["a", "b"], ["a", "c"]]) == [
        {"a": "a", "b": "b"},
        {"a": "a (2)", "c": "c"},
    ]


def test_an_expected_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ExceptionGroup("", [ExceptionGroup("", [ValueError("no such case")])])

    assert run_or_explain(fail, (ValueError, OSError)) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(": no such case")


# Servers and texts.


def test_a_url_may_carry_a_label() -> None:
    servers = read_servers(
        ["ours=http://127.0.0.1:8000", "https://peer.example/api?a=b"]
    )
    assert [(server.label, server.url) for server in servers] == [
        ("ours", "http://127.0.0.1:8000"),
        ("peer.example", "https://peer.example/api?a=b"),
    ]


@pytest.mark.parametrize(
    "urls", [["127.0.0.1:8000"], ["a=http://x", "a=http://y"], ["http://x", "http://x"]]
)
def test_urls_that_make_no_sense_are_refused(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="LABEL|labels"):
        read_servers(urls)


def test_texts_have_their_length_and_are_seeded() -> None:
    text = write_text(200, "chat", 1)
    assert len(text) == 200
    assert text == write_text(200, "chat", 1) != write_text(200, "chat", 2)


# Probes.


def test_probes_due_during_a_late_answer_count_from_their_due_time() -> None:
    probe = HealthProbe("http://127.0.0.1:1", 0.01)
    # Probes are due every 10 ms from 1.000; the first one is sent 2 ms late.
    waits = probe.list_waits(1.0, 1.002, 1.035)
    assert waits == pytest.approx([0.033, 0.025, 0.015, 0.005])


def test_a_quick_answer_is_one_probe() -> None:
    probe = HealthProbe("http://127.0.0.1:1", 0.01)
    assert probe.list_waits(1.0, 1.001, 1.004) == pytest.approx([0.003])


async def test_a_refused_probe_is_sent_again_and_its_time_runs_on(
    listen: Any, write_answer: Any
) -> None:
    stop = trio.Event()
    statuses = ["503 Busy", "200 OK"]

    async def answer(line: str, body: bytes) -> bytes:
        if len(statuses) == 1:
            stop.set()
        return write_answer(statuses.pop(0))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            http = await listen(nursery, answer)
            probe = HealthProbe(http.url, 0.001)
            await probe.run(stop)
            nursery.cancel_scope.cancel()
    assert probe.num_failures == 1
    # The pause before the second attempt is part of the first probe's time.
    assert probe.seconds[0] >= 0.001
