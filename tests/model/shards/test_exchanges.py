"""Shards that are processes exchange over shared memory, or over gloo."""

from __future__ import annotations

import json
from pathlib import Path
import socket
import subprocess
import sys

import pytest

PROGRAM = Path(__file__).parent / "exchange_process.py"
# Like `python -m`, this puts the working directory's packages first.
RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["memory", "gloo"])
def test_two_processes_exchange_numbers_and_notice_each_others_end(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    shards = [
        subprocess.Popen(
            [*(sys.executable, "-c", RUN, str(PROGRAM)), *(str(index), port, way)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for index, shard in enumerate(shards):
            assert shard.stdout is not None
            sums, halves, logits, tokens = json.loads(shard.stdout.readline())
            assert sums == [10.0, 12.0, 14.0, 16.0]
            assert halves == [[3.0, 3.0, 1.0 + index]] * 2
            assert logits == [65.0] * 2
            assert tokens == [7, 8, 9]
        if way == "gloo":
            shards[0].kill()
            shards[0].wait()
            # A peer that is gone closes its connection; memory tells nothing, and the
            # engine ends all processes when one of them has ended.
            output, _ = shards[1].communicate("go\n", timeout=30.0)
            assert "a process that shares the layers is lost" in output
        else:
            for shard in shards:
                assert shard.stdin is not None
                shard.stdin.write("go\n")
                shard.stdin.flush()
            assert [shard.communicate(timeout=30.0)[0] for shard in shards] == ["", ""]
    finally:
        for shard in shards:
            shard.kill()
            shard.communicate()
