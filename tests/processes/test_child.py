"""Child processes that are started before they are needed."""

from __future__ import annotations

from pathlib import Path
import signal
import subprocess
from typing import Any

import pytest

from trioserve.processes import Alive, open_child, start_early

# Ends with its connection.
MODULE = """
import socket, sys
socket.socket(fileno=int(sys.argv[1])).recv(1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waiting_child.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "waiting_child"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that this test has started, in order."""
    processes: list[Any] = []
    original: Any = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        processes.append(original(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


async def test_an_early_process_is_the_first_child_of_its_module(
    module: str, started: list[Any]
) -> None:
    with start_early(module, "argument"):
        [early] = started
        async with open_child(module, receives=Alive, name="the first") as first:
            async with open_child(module, receives=Alive, name="the second") as second:
                assert (first.pid, len(started)) == (early.pid, 2)
                assert second.pid == started[1].pid
        assert early.args[-1] == "argument"
        assert early.returncode is not None


def test_an_early_process_that_nobody_takes_ends_with_the_block(
    module: str, started: list[Any]
) -> None:
    with start_early(module):
        [early] = started
        assert early.poll() is None
    assert early.returncode == -signal.SIGKILL
