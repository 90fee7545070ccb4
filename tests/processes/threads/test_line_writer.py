"""Lines reach their file by a thread, and a file that takes none costs lines alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import logging
import os
from pathlib import Path
import threading
import time

import pytest

from trioserve.processes.threads.line_writer import MAX_WAITING_BYTES, LineWriter

Open = Callable[[Path], LineWriter]


@pytest.fixture
def opened() -> Iterator[Open]:
    writers = []

    def open_it(path: Path) -> LineWriter:
        writers.append(LineWriter(str(path)))
        writers[-1].start()
        return writers[-1]

    yield open_it
    for writer in writers:
        writer.close(10)


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def test_lines_are_added_in_order(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    writer = opened(path)
    for number in range(1000):
        writer.write(b"%d\n" % number)
    writer.close(10)
    assert path.read_bytes().split() == [b"old", *(b"%d" % n for n in range(1000))]
    assert writer.num_dropped == 0
    writer.write(b"late\n")
    assert writer.num_dropped == 1


def test_a_dash_is_standard_output(
    opened: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = opened(Path("-"))
    writer.write(b"one\n")
    writer.reopen()
    writer.write(b"two\n")
    writer.close(10)
    assert capfd.readouterr().out == "one\ntwo\n"


def test_others_cannot_read_a_new_file(opened: Open, tmp_path: Path) -> None:
    opened(tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o7 == 0


def test_a_file_that_was_moved_away_is_opened_again(
    opened: Open, tmp_path: Path
) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    writer = opened(path)
    writer.write(b"one\n")
    wait_until(lambda: path.read_bytes() == b"one\n")
    path.rename(moved)
    writer.write(b"two\n")
    wait_until(lambda: moved.read_bytes() == b"one\ntwo\n")
    writer.reopen()
    wait_until(path.exists)
    writer.write(b"three\n")
    wait_until(lambda: path.read_bytes() == b"three\n")


def test_the_old_file_stays_if_the_path_cannot_be_opened(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    writer = opened(folder / "log")
    folder.rename(tmp_path / "moved")
    writer.reopen()
    wait_until(lambda: "stays as it is: No such file" in caplog.text)
    writer.write(b"one\n")
    wait_until(lambda: (tmp_path / "moved" / "log").read_bytes() == b"one\n")


def test_a_reader_that_hangs_costs_the_lines_that_have_no_place(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, line = tmp_path / "pipe", bytes(2**16 - 1) + b"\n"
    os.mkfifo(path)
    with pytest.raises(OSError):
        LineWriter(str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = opened(path)
    num_lines = 3 * MAX_WAITING_BYTES // len(line)
    for _ in range(num_lines):
        writer.write(line)
    assert num_lines / 3 < writer.num_dropped < num_lines
    received = bytearray()

    def read() -> None:
        os.set_blocking(reader, True)
        while data := os.read(reader, 2**16):
            received.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    writer.close(10)
    thread.join()
    os.close(reader)
    assert len(received) == (num_lines - writer.num_dropped) * len(line)
    [record] = caplog.records
    assert f"lines dropped: {writer.num_dropped} (it is too slow)" in record.message


def test_a_full_disk_costs_lines_and_leaves_no_torn_one(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    room = [6]
    write = os.write

    def write_to_disk(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = write(file, bytes(data)[: room[0]])
        room[0] -= num_written
        return num_written

    monkeypatch.setattr(os, "write", write_to_disk)
    writer = opened(path)
    writer.write(b"one\n")
    wait_until(lambda: path.read_bytes() == b"one\n")
    writer.write(b"two\n")
    wait_until(lambda: writer.num_dropped == 1)
    writer.write(b"three\n")
    wait_until(lambda: writer.num_dropped == 2)
    room[0] = 1000
    writer.write(b"four\n")
    wait_until(lambda: path.read_bytes() == b"one\ntw\nfour\n")
    assert writer.num_dropped == 2


@pytest.mark.parametrize("number", [2, 3])
def test_a_full_disk_is_one_line_of_the_log_a_minute(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    # The kernel's own full disk.
    writer = LineWriter("/dev/full")
    writer.start()
    for written in range(number):
        writer.write(b"line\n")
        wait_until(lambda: writer.num_dropped == written + 1)
    writer.close(10)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.message == ("/dev/full: lines dropped: 1 (No space left on device)")
