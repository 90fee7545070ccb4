"""A batch survives kill -9: each line is answered once, whoever answers the rest."""

from __future__ import annotations

import json
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.slow

RUN_BATCH = (sys.executable, "-m", "trioserve", "run-batch")

NUM_LINES = 120


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    body = {"prompt": "Once upon", "max_tokens": 20, "ignore_eos": True}
    with path.open("w") as file:
        for number in range(NUM_LINES):
            line = {
                "custom_id": f"line {number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {**body, "seed": number},
            }
            print(json.dumps(line), file=file)
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN_BATCH, *map(str, arguments)], capture_output=True, text=True, timeout=180
    )


def wait_lines(path: Path, process: subprocess.Popen[Any], count: int) -> None:
    deadline = time.monotonic() + 180
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the batch has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_goes_on_after_a_signal(
    server: Any, model_folder: Path, source: Path, tmp_path: Path, signum: int
) -> None:
    """The first run has its own engine or asks the server, and the second asks it."""
    target = tmp_path / "out.jsonl"
    files = ("-i", str(source), "-o", str(target))
    engine = [str(model_folder), "--num-threads", "1", "--kv-cache-memory", "64MiB"]
    is_killed = signum == signal.SIGKILL
    asked = engine if is_killed else ["--url", server.url, "--max-concurrency", "4"]
    with subprocess.Popen(
        [*RUN_BATCH, *files, *asked], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_lines(target, process, 10)
            process.send_signal(signum)
            error = process.stderr.read() if process.stderr else ""
        finally:
            process.kill()
    assert process.returncode == (-signal.SIGKILL if is_killed else 128 + signum)
    assert is_killed or "the same command goes on from here" in error
    before = target.read_bytes()
    assert 10 <= before.count(b"\n") < NUM_LINES
    if is_killed:
        # What a killed run may leave of the line that it was writing.
        target.write_bytes(before + b'{"id":"batch_req_119_')
    ended = run(*files, "--url", server.url)
    assert ended.returncode == 0, ended.stderr
    assert f"{NUM_LINES} lines, 0 of them failed" in ended.stderr
    assert target.read_bytes().startswith(before)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(lines) == NUM_LINES
    assert {line["custom_id"] for line in lines} == {
        f"line {number}" for number in range(NUM_LINES)
    }


def test_pipes_are_read_and_written(server: Any) -> None:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "Once", "max_tokens": 2, "ignore_eos": True},
    }
    ended = subprocess.run(
        [*RUN_BATCH, "-i", "-", "-o", "-", "--url", server.url],
        input=f"{json.dumps(line)}\nno json\n",
        capture_output=True,
        text=True,
        timeout=180,
    )
    found = {
        each["custom_id"]: each
        for each in map(json.loads, ended.stdout.split("\n")[:-1])
    }
    assert ended.returncode == 1 and found.keys() == {"a", None}
    assert found["a"]["response"]["body"]["usage"]["completion_tokens"] == 2
