"""bench/loop_stall.py sends the bursts of its docstring, and reports its figures."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
import io
import json
import threading
from typing import Any

from PIL import Image
from kit.probe_process import Bystanders, has_text
from kit.rendering import bursts
from kit.rendering.server import render_inline
import loop_stall
import pytest

from trioserve.programs.bench.measuring.statistics import Spread
from trioserve.render import RendererWorkers

SPREAD = Spread(median=0.002, p90=0.01, p95=0.02, p99=0.04, maximum=0.05, count=100)

FIGURES = loop_stall.Figures(
    requests_per_second=10.0,
    health=SPREAD,
    loop_gap_seconds=0.03,
    longest_step_seconds=0.01,
    longest_step_task="trioserve.engine.engine.Engine.run",
    inter_token=None,
    num_failures=0,
    failures={},
    generator_cpu=0.1,
    prober_lag_p99=0.001,
    offenders=[],
)


# The requests.


def test_a_load_repeats_tensors_but_no_image_and_no_chat() -> None:
    size = bursts.Size(
        num_images=1,
        num_embeds=2,
        embeds_rows=2,
        long_embeds_rows=3,
        embeds_turns=2,
        num_chats=1,
        num_messages=3,
        chat_turns=2,
    )

    load = bursts.build_bursts(size)

    requests = {
        name: [request for turns in clients for request in turns]
        for name, clients in load.clients.items()
    }
    assert {name: len(each) for name, each in requests.items()} == {
        "images": 1,
        "embeds": 6,
        "templates": 2,
        "mixed": 9,
    }
    everything = [*load.warm_up, *sum(requests.values(), [])]
    # Three images, five chats and two tensors.
    assert len({request.body for request in everything}) == 10


def test_an_image_is_a_jpeg_of_a_megapixel() -> None:
    (message,) = json.loads(bursts.write_image_chat(0).body)["messages"]
    url = message["content"][0]["image_url"]["url"]
    data = b64decode(url.removeprefix("data:image/jpeg;base64,"))

    assert Image.open(io.BytesIO(data)).size == (1152, 864)
    assert 200_000 < len(data) < 400_000


# The server and the prober.


async def test_inline_calls_are_made_in_the_loops_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("run", "run_limited"):
        # monkeypatch restores these after the test.
        monkeypatch.setattr(RendererWorkers, name, getattr(RendererWorkers, name))
    workers = RendererWorkers(1)
    here = threading.current_thread()
    assert await workers.run(threading.current_thread) is not here

    render_inline()

    assert await workers.run(threading.current_thread) is here
    assert await workers.run_limited(threading.current_thread, 1.0) is here


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
    assert has_text(line) == expected


async def test_gaps_count_from_the_beginning_of_the_measurement(
    autojump_clock: Any,
) -> None:
    bystanders = Bystanders(1, 1)
    bystanders.note_text(0, 0.0, 1.0)
    bystanders.begin()
    now = loop_stall.trio.current_time()
    bystanders.note_text(0, now - 5.0, now + 2.0)
    bystanders.note_text(0, now + 2.0, now + 5.0)
    assert bystanders.gaps == [2.0, 3.0]


# Figures.


def test_each_figure_has_its_median_and_failures_add_up() -> None:
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
