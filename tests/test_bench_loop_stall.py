"""bench/loop_stall.py counts what it should, and takes away what it says it does."""

from __future__ import annotations

import argparse
from base64 import b64decode
from dataclasses import replace
import io
import json
from pathlib import Path
import threading
from typing import Any

from PIL import Image
import loop_stall
import pytest
import torch
import trio
import trio.testing

from trioserve.render import RendererWorkers

SPREAD = loop_stall.Spread(p50=0.002, p95=0.02, p99=0.04, longest=0.05, count=100)

FIGURES = loop_stall.Figures(
    requests_per_second=10.0,
    health=SPREAD,
    loop_gap_seconds=0.03,
    longest_step_seconds=0.01,
    longest_step_task="trioserve.engine.generation.engine.Engine.run",
    inter_token=None,
    num_failures=0,
    failures={},
    generator_cpu=0.1,
    prober_lag_p99=0.001,
    offenders=[],
)


def make_results(**by_mode: Any) -> Any:
    return loop_stall.Results(
        created="2026-01-01",
        machine="a machine",
        num_rounds=1,
        size=loop_stall.SMALL,
        results=tuple(
            loop_stall.Result(
                scenario=scenario, mode=mode, median=figures, rounds=(figures,)
            )
            for scenario in ("images", "mixed")
            for mode, figures in by_mode.items()
        ),
    )


# What is asked.


def test_a_load_has_every_image_and_chat_once_but_tensors_again() -> None:
    size = loop_stall.Size(
        num_images=1,
        num_embeds=2,
        embeds_rows=2,
        long_embeds_rows=3,
        embeds_turns=2,
        num_chats=1,
        num_messages=3,
        chat_turns=2,
    )

    load = loop_stall.build_load(size)

    bursts = {
        name: [request for turns in clients for request in turns]
        for name, clients in load.bursts.items()
    }
    assert {name: len(requests) for name, requests in bursts.items()} == {
        "images": 1,
        "embeds": 6,
        "templates": 2,
        "mixed": 9,
    }
    everything = [*load.warm_up, *sum(bursts.values(), [])]
    # Three images, five chats and two tensors.
    assert len({request.body for request in everything}) == 10


def test_an_image_is_a_jpeg_of_a_megapixel() -> None:
    (message,) = json.loads(loop_stall.write_image_chat(0).body)["messages"]
    url = message["content"][0]["image_url"]["url"]
    data = b64decode(url.removeprefix("data:image/jpeg;base64,"))

    assert Image.open(io.BytesIO(data)).size == (1152, 864)
    assert 200_000 < len(data) < 400_000


def test_embeds_are_what_torch_saved() -> None:
    body = json.loads(loop_stall.write_embeds(2).body)
    tensor = torch.load(io.BytesIO(b64decode(body["prompt_embeds"])))

    assert (tensor.shape, tensor.dtype) == ((2, 4096), torch.bfloat16)


def test_long_chats_differ_in_their_last_message_alone() -> None:
    one, other = (
        json.loads(loop_stall.write_long_chat(100, seed).body) for seed in (1, 2)
    )

    assert one["messages"][:-1] == other["messages"][:-1]
    assert one["messages"][-1] != other["messages"][-1]
    assert one["tools"] == other["tools"]
    assert sum(len(message["content"]) for message in one["messages"]) == 19_840


# The server.


async def test_inline_calls_are_made_in_the_loops_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("run", "run_limited"):
        # To be put back afterwards.
        monkeypatch.setattr(RendererWorkers, name, getattr(RendererWorkers, name))
    workers = RendererWorkers(1)
    here = threading.current_thread()
    assert await workers.run(threading.current_thread) is not here

    loop_stall.render_inline()

    assert await workers.run(threading.current_thread) is here
    assert await workers.run_limited(threading.current_thread, 1.0) is here


async def test_lines_are_whole_however_they_come() -> None:
    sender, receiver = trio.testing.memory_stream_one_way_pair()
    lines = loop_stall.LineReader(receiver)
    for data in (b"re", b"set\nrep", b"ort\n\nrest"):
        await sender.send_all(data)
    await sender.aclose()

    read = [await lines.read() for _ in range(4)]

    assert read == [b"reset", b"report", b"", None]


# The prober.


def test_probes_that_fell_due_while_one_was_late_count_from_then() -> None:
    # Due every 10 ms from 1.000, the first sent 2 ms late.
    waits = loop_stall.list_waits(1.0, 1.002, 1.035)

    assert waits == pytest.approx([0.033, 0.025, 0.015, 0.005])


def test_a_quick_answer_is_one_probe() -> None:
    assert loop_stall.list_waits(1.0, 1.001, 1.004) == pytest.approx([0.003])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'data: {"choices":[{"delta":{"content":"la"}}]}', True),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'data: {"choices":[{"delta":{}}]}', False),
        (b"data: [DONE]", False),
        (b"5f\r", False),
    ],
)
def test_only_events_with_text_count(line: bytes, expected: bool) -> None:
    assert loop_stall.has_text(line) == expected


def test_an_answer_is_whole_when_its_length_is_there() -> None:
    head = b"HTTP/1.1 200\r\nContent-Length: 2\r\n"

    assert not loop_stall.is_whole(head)
    assert not loop_stall.is_whole(head + b"\r\n{")
    assert loop_stall.is_whole(head + b"\r\n{}")


# Figures.


def test_a_spread_reads_percentiles_between_samples() -> None:
    assert loop_stall.spread(range(101, 0, -1)) == loop_stall.Spread(
        p50=51.0, p95=96.0, p99=100.0, longest=101, count=101
    )


def test_medians_are_of_each_figure_and_failures_add_up() -> None:
    rounds = [
        replace(
            FIGURES,
            requests_per_second=float(speed),
            health=replace(SPREAD, p99=float(speed)),
            longest_step_seconds=float(speed),
            longest_step_task=f"task {speed}",
            num_failures=1,
            failures={"reset": 1},
        )
        for speed in (3, 1, 8)
    ]

    median = loop_stall.take_medians(rounds)

    assert median.requests_per_second == 3.0
    assert median.health == replace(SPREAD, p99=3.0, count=300)
    assert median.longest_step_seconds == 3.0
    assert median.longest_step_task == "task 8"
    assert (median.num_failures, median.failures) == (3, {"reset": 3})
    assert median.inter_token is None


def test_ratios_are_to_threads() -> None:
    slow = replace(FIGURES, loop_gap_seconds=0.6, requests_per_second=5.0)

    headings, *rows = loop_stall.build_ratios(
        make_results(inline=slow, threads=FIGURES)
    )

    assert [row[:2] for row in rows] == [
        ["inline / threads", "images"],
        ["inline / threads", "mixed"],
    ]
    assert dict(zip(headings, rows[0])) == {
        "ratio of medians": "inline / threads",
        "scenario": "images",
        "req/s": "0.50",
        "p50": "1.00",
        "p95": "1.00",
        "p99": "1.00",
        "loop gap": "20",
        "longest step": "1.00",
        "ITL p99": "-",
    }


def test_the_table_has_a_row_for_each_mode_and_names_failures() -> None:
    failing = replace(FIGURES, num_failures=2, failures={"HTTP/1.1 503": 2})

    text = loop_stall.render_results(make_results(threads=FIGURES, inline=failing))

    lines = [line.split() for line in text.splitlines()]
    row = "images threads 10.0 2.00 20.0 40.0 30.0 10.0 - Engine.run"
    assert row.split() in lines
    assert "mixed, inline: 2 failures: {'HTTP/1.1 503': 2}" in text


@pytest.mark.slow
def test_a_plot_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "stall.png"

    loop_stall.save_plot(make_results(inline=FIGURES, threads=FIGURES), path)

    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "expected"), [(2454.1, "2500"), (13.7, "14"), (1.58, "1.6")]
)
def test_bars_are_labelled_with_two_digits(value: float, expected: str) -> None:
    assert loop_stall.write_label(value) == expected


# The command line.


def test_names_are_read_with_commas() -> None:
    assert loop_stall.read_choice("mixed,images", loop_stall.SCENARIOS) == (
        "mixed",
        "images",
    )
    with pytest.raises(argparse.ArgumentTypeError, match="text"):
        loop_stall.read_choice("text", loop_stall.SCENARIOS)


def test_a_small_run_has_one_round_unless_more_are_asked_for() -> None:
    parse = loop_stall.parse_arguments

    assert parse([]).rounds == 3
    assert parse(["--small"]).rounds == 1
    assert parse(["--small", "--rounds", "2"]).rounds == 2


def test_results_that_could_not_be_saved_end_the_run_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        loop_stall.parse_arguments(["--json", str(tmp_path / "none" / "x.json")])

    assert "is not a folder" in capsys.readouterr().err
