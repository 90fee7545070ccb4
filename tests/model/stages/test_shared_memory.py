"""Memory of another process is opened by a path, which may name something else here."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path

import psutil
import pytest

from trioserve.model.stages.shared_memory import open_with_token

TOKEN = bytes(range(16))
SIZE = 100


def write_token(path: Path) -> Path:
    path.write_bytes(bytes(SIZE) + TOKEN)
    return path


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def write_another(path: Path) -> Path:
    path.write_bytes(bytes(SIZE + 16))
    return path


def test_memory_with_the_token_is_opened(tmp_path: Path) -> None:
    memory_fd = open_with_token(str(write_token(tmp_path / "memory")), TOKEN, SIZE)
    assert memory_fd is not None
    os.close(memory_fd)


@pytest.mark.parametrize(
    "make", [make_pipe, write_another, lambda path: path, lambda path: path.parent]
)
def test_something_else_is_not(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    num_open = psutil.Process().num_fds()
    assert open_with_token(str(make(tmp_path / "memory")), TOKEN, SIZE) is None
    assert psutil.Process().num_fds() == num_open
