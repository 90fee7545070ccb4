"""Shards and stages that are processes, connected by shared memory and by gloo."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import runpy
import socket
import subprocess
from typing import Any

import pytest
from warm_start import FORK

from trioserve.model.runner import ModelRunner

PROGRAM = Path(__file__).parent / "stage_process.py"
PLANS = runpy.run_path(str(PROGRAM))

pytestmark = pytest.mark.slow


def find_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_two_processes_write_the_same_as_one_and_notice_each_others_end(
    cut: Callable[..., Any],
) -> None:
    model = cut("llama")
    ports = [find_port() for _ in range(3)]
    stages: list[Any] = [
        subprocess.Popen(
            [*FORK, str(PROGRAM), str(model.folder), str(index), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for way in ("memory", "gloo"):
            for index, stage in enumerate(stages):
                sums, halves, logits, tokens = read_line(stage)
                assert sums == [10.0, 12.0, 14.0, 16.0], way
                assert halves == [[3.0, 3.0, 1.0 + index]] * 2
                assert logits == [65.0] * 2
                assert tokens == [7, 8, 9]
        # Shared memory tells nothing: the engine ends all processes if one has ended.
        assert "a process that shares the layers is lost" in read_line(stages[1])
        first, last = map(read_line, stages)
        runner = ModelRunner(model.loaded, **PLANS["SIZES"])
        plans = PLANS["make_plans"]()
        expected = [runner.step(plan).sampled for plan in plans[:-1]]
        assert [tuple(map(tuple, sampled)) for sampled in last] == expected
        assert not any(first)
        stages[0].kill()
        stages[0].wait()
        # Otherwise it would wait a minute for a message (stage_process.py).
        output, _ = stages[1].communicate("go\n", timeout=30.0)
        assert "rank 0 is lost" in output
        assert stages[1].returncode == 0
    finally:
        for stage in stages:
            stage.kill()
            stage.communicate()


def read_line(process: Any) -> Any:
    return json.loads(process.stdout.readline())
