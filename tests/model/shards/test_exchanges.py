"""Shards that are processes exchange over shared memory, or over gloo."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest

from ..stages.test_processes import RUN, find_port

PROGRAM = Path(__file__).parent / "exchange_process.py"
pytestmark = pytest.mark.slow


def test_two_processes_exchange_numbers_and_notice_each_others_end() -> None:
    ports = find_port(), find_port()
    shards: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(PROGRAM), str(index), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for way in ("memory", "gloo"):
            for index, shard in enumerate(shards):
                sums, halves, logits, tokens = json.loads(shard.stdout.readline())
                assert sums == [10.0, 12.0, 14.0, 16.0], way
                assert halves == [[3.0, 3.0, 1.0 + index]] * 2
                assert logits == [65.0] * 2
                assert tokens == [7, 8, 9]
            if way == "memory":
                for shard in shards:
                    shard.stdin.write("go\n")
                    shard.stdin.flush()
        shards[0].kill()
        shards[0].wait()
        # A peer that is gone closes its connection.
        output, _ = shards[1].communicate("go\n", timeout=30.0)
        assert "a process that shares the layers is lost" in output
    finally:
        for shard in shards:
            shard.kill()
            shard.communicate()
