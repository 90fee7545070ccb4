"""A long task shows on a terminal that it goes on, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
import io
import os
from pathlib import Path
import sys
import threading

import pytest

from trioserve.observe import progress
from trioserve.observe.progress import describe_progress, show_progress


class Terminal(io.StringIO):
    """A terminal that sets an event when a text has been written."""

    def __init__(self, awaited: str = "") -> None:
        super().__init__()
        self._awaited = awaited
        self.is_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._awaited in text:
            self.is_written.set()
        return super().write(text)


def test_a_line_has_task_size_and_time() -> None:
    line = describe_progress("fetching org/name", 61.4, 12_300_000)
    assert line == "fetching org/name: 12 MB, 61 s"


def test_a_task_without_a_folder_has_the_time_alone() -> None:
    assert describe_progress("converting x.gguf", 0.2, None) == "converting x.gguf: 0 s"


def test_a_log_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with show_progress("fetching org/name"):
        pass
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_terminal_is_left_with_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = Terminal("fetching org/name: 3 MB, ")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.001)
    with show_progress("fetching org/name", tmp_path):
        (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
        assert terminal.is_written.wait(30)
    assert terminal.getvalue().endswith("\x1b[2K")
    monkeypatch.undo()


def test_a_folder_may_vanish_while_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the temporary folders of pip do."""
    (tmp_path / "kept").write_bytes(bytes(5))
    gone = tmp_path / "gone"
    gone.mkdir()
    scan = os.scandir

    def vanish(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path) == gone:
            gone.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanish)
    assert progress._measure(tmp_path) == 5
    assert not gone.exists()


def test_an_error_of_the_task_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ValueError, match="broken"), show_progress("fetching org/name"):
        raise ValueError("broken")
    assert terminal.getvalue() == "\x1b[2K"
