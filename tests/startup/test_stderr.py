"""The log never waits for its reader."""

from __future__ import annotations

from collections.abc import Iterator
import fcntl
import io
import logging
import os
import socket

import pytest

from trioserve.startup.stderr import MAX_WAITING_BYTES, PatientHandler, open_handler

# The least size of a pipe, on most machines.
PIPE_BYTES = 4096


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.Logger("patient")
    yield logger
    for handler in logger.handlers:
        handler.close()


def read_all(file: int) -> str:
    os.set_blocking(file, False)
    data = b""
    while True:
        try:
            data += os.read(file, 2**20)
        except BlockingIOError:
            return data.decode()


def test_lines_wait_for_a_reader_in_their_order(logger: logging.Logger) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with open(writer, "w") as stream:
        logger.addHandler(open_handler(stream))
        # Nobody reads, and no call waits.
        for number in range(300):
            logger.error("line %d of a log that fills its pipe", number)
        text = read_all(reader)
        assert PIPE_BYTES - 100 < len(text) <= PIPE_BYTES
        while "line 299 " not in text:
            # Each record writes what waits.
            logger.error("next")
            text += read_all(reader)
        # Other programs that share the stream still wait for its reader.
        assert os.get_blocking(writer)
    lines = [line for line in text.splitlines() if line != "next"]
    assert lines == [f"line {n} of a log that fills its pipe" for n in range(300)]


def test_lines_without_a_place_are_counted(logger: logging.Logger) -> None:
    ours, theirs = socket.socketpair()
    with ours, open(theirs.detach(), "w") as stream:
        logger.addHandler(open_handler(stream))
        for _ in range(40):
            logger.error("x" * (MAX_WAITING_BYTES // 16))
        text = ""
        while "dropped" not in text:
            text += read_all(ours.fileno())
            logger.error("next")
        text += read_all(ours.fileno())
    [told] = [line for line in text.splitlines() if "dropped" in line]
    num_long = sum(line.startswith("x") for line in text.splitlines())
    num_next = text.count("next")
    # Some of the later lines may have been dropped, too.
    assert told.endswith(" lines of the log were dropped")
    assert int(told.split()[0]) >= 40 - num_long > 0
    assert num_next


def test_the_end_waits_for_a_moment_only(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.startup.stderr._LAST_SECONDS", 0.01)
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        handler = open_handler(stream)
        logger.addHandler(handler)
        logger.error("x" * 200_000)
        handler.flush()
        os.close(reader)
        # Nobody will read it, so it is dropped, and nothing is raised.
        logger.error("last")
        handler.flush()


def test_a_replaced_stream_is_written_as_ever(logger: logging.Logger) -> None:
    stream = io.StringIO()
    logger.addHandler(open_handler(stream))
    logger.error("hello")
    assert stream.getvalue() == "hello\n"


def test_a_file_is_written_as_ever(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    with path.open("w") as stream:
        assert not isinstance(open_handler(stream), PatientHandler)
