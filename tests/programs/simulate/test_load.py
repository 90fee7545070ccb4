"""Loads are read from traces or drawn at random, and errors in them are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trioserve.errors import InvalidConfig
from trioserve.programs.simulate import (
    SimulateConfig,
    SimulatedRequest,
    list_requests,
    read_trace,
)

CSV = "prompt_tokens, arrival_seconds, output_tokens\n300, 1.5, 20\n\n7, 0, 1\n"
JSON = (
    '{"arrival_seconds": 1.5, "prompt_tokens": 300, "output_tokens": 20}\n'
    "\n"
    '{"arrival_seconds": 0, "output_tokens": 1, "prompt_tokens": 7}\n'
)


@pytest.mark.parametrize("content", [CSV, JSON], ids=["csv", "json"])
def test_a_trace_is_read_and_sorted_by_arrival(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    assert read_trace(path, 1000) == [
        SimulatedRequest(arrival_seconds=0.0, prompt_tokens=7, output_tokens=1),
        SimulatedRequest(arrival_seconds=1.5, prompt_tokens=300, output_tokens=20),
    ]


HEADER = "arrival_seconds,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no requests"),
        (HEADER, "has no requests"),
        ("when,prompt_tokens,output_tokens\n", "line 1: the header must name arrival"),
        (HEADER + "0,1,1\n0,1\n", "line 3: 3 values wanted, got 2"),
        (HEADER + "0,1,1,1\n", "line 2: 3 values wanted, got 4"),
        (HEADER + "\n0,one,1\n", "line 3: Expected `int`, got `str`"),
        (HEADER + "-1,1,1\n", "line 2: arrival_seconds must be 0 or more"),
        (HEADER + "nan,1,1\n", "line 2: "),
        (HEADER + "0,0,1\n", "line 2: prompt_tokens must be at least 1"),
        (HEADER + "0,1,0\n", "line 2: output_tokens must be at least 1"),
        (HEADER + "0,60,41\n", "line 2: 101 tokens do not fit into 100"),
        ('{"arrival_seconds": 0}\n', "line 1: Object missing required field"),
        (JSON + "nonsense\n", "line 4: JSON is malformed"),
        (JSON.replace("7}", '7, "x": 1}'), "line 3: Object contains unknown field"),
        ("{}\n[1]\n", "line 1: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    limit = 1000 if content.startswith("{") else 100
    with pytest.raises(InvalidConfig) as caught:
        read_trace(path, limit)
    assert str(caught.value).startswith("--trace: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_trace_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "trace.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidConfig, match="cannot read"):
        read_trace(path, 100)


def test_a_made_up_load_has_its_rate_and_its_lengths() -> None:
    config = SimulateConfig(requests=2000, rate=5.0, prompt_tokens=(10, 20))
    requests = list_requests(config)
    assert list_requests(config) == requests
    assert 350 < requests[-1].arrival_seconds < 450
    assert {request.prompt_tokens for request in requests} == set(range(10, 21))


def test_a_load_may_come_all_at_once() -> None:
    requests = list_requests(SimulateConfig(requests=3, rate=math.inf))
    assert [request.arrival_seconds for request in requests] == [0.0, 0.0, 0.0]


def test_made_up_requests_must_fit_the_blocks() -> None:
    config = SimulateConfig(kv_blocks=10, prompt_tokens=(1, 100), output_tokens=(1, 61))
    with pytest.raises(InvalidConfig, match="--kv-blocks: 161 tokens do not fit"):
        list_requests(config)
