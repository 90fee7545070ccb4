"""The input is read as a stream, and the output records the finished work."""

from __future__ import annotations

from contextlib import closing
import gzip
import io
import json
from pathlib import Path

import pytest

from trioserve.errors import InvalidConfig
from trioserve.programs.batch.lines import InputLine, LineReader, LiveInput, open_lines
from trioserve.programs.batch.output import open_output
from trioserve.programs.batch.record import ErrorPart, OutputLine, name_line
from trioserve.programs.batch.request import LineRefused, read_request
from trioserve.programs.batch.work import survey


def read_all(path: Path) -> list[InputLine]:
    lines = []
    with open_lines(str(path)) as reader:
        while some := reader.read():
            lines += some
    return lines


def make_request(**changes: object) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}
    return json.dumps(fields | changes).encode()


def make_answer(line: InputLine) -> bytes:
    error = ErrorPart(code="c", message="m")
    return OutputLine(
        id=name_line(line), custom_id="a", response=None, error=error
    ).encode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  two \nthree")
    return path


def test_empty_lines_are_counted_and_skipped(source: Path) -> None:
    found = [(line.number, line.text) for line in read_all(source)]
    assert found == [(1, b"one"), (3, b"two"), (4, b"three")]


def test_a_compressed_file_has_the_same_lines(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    assert read_all(packed) == read_all(source)


def test_a_broken_compressed_file_is_explained(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes())[:-9])
    with pytest.raises(InvalidConfig, match="--input-file: cannot be read: "):
        read_all(packed)


def test_a_line_that_is_too_long_is_not_kept_in_memory() -> None:
    texts = [b"[" * 109, b"[" * 310, b"[" * 99, b"{}"]
    reader = LineReader(io.BytesIO(b"\n".join(texts)), max_bytes=100)
    lines = reader.read()
    assert [line.is_too_long for line in lines] == [True, True, False, False]
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert len(lines[1].text) <= 101 and lines[2].text == texts[2]
    assert lines[0].digest != lines[1].digest
    with pytest.raises(LineRefused, match="longer than"):
        read_request(lines[0])


@pytest.mark.parametrize(
    ("text", "reason", "custom_id"),
    [
        (b"hello", "the line is not JSON", None),
        (b'{"custom_id": "\xff"}', "the line is not JSON", None),
        (b"[1]", "must be a JSON object", None),
        (make_request(custom_id=5), "custom_id must be a text", None),
        (b"{}", "custom_id must be a text", None),
        (make_request(method="GET"), "method must be POST", "a"),
        (make_request(url="v1/completions"), "url must be the path", "a"),
        (make_request(url="/a b"), "url must be the path", "a"),
        (make_request(url="/a\r\nHost: b"), "url must be the path", "a"),
        (make_request(body=[1]), "body must be a JSON object", "a"),
        (b'{"custom_id": "a", "method": "POST", "url": "/x"}', "body must be", "a"),
        (make_request(body={"stream": True}), "stream is not possible", "a"),
        (make_request(url="/api/chat"), "stream must be false in a batch", "a"),
        (make_request(body={"background": True}), "background is not", "a"),
    ],
)
def test_a_wrong_line_gets_its_own_sentence(
    text: bytes, reason: str, custom_id: str | None
) -> None:
    line = InputLine(number=1, text=text, digest=1)
    with pytest.raises(LineRefused, match=reason) as refusal:
        read_request(line)
    assert refusal.value.custom_id == custom_id


def test_a_right_line_is_taken_apart() -> None:
    text = make_request(body={"stream": False, "prompt": "é"})
    request = read_request(InputLine(number=1, text=text, digest=1))
    assert (request.custom_id, request.path) == ("a", "/v1/completions")
    assert json.loads(request.body) == {"stream": False, "prompt": "é"}


@pytest.mark.parametrize("cut", [1, 12, 60])
def test_a_torn_last_line_is_cut_off(source: Path, tmp_path: Path, cut: int) -> None:
    one, two, three = read_all(source)
    path = tmp_path / "out.jsonl"
    path.write_bytes(make_answer(one) + make_answer(three) + make_answer(two)[:cut])
    with open_output(str(path)) as (output, done):
        assert [done.has(line) for line in (one, two, three)] == [True, False, True]
        assert (done.num_lines, done.num_failed) == (2, 2)
        output.write(make_answer(two))
    with open_output(str(path)) as (_, done):
        assert all(done.has(line) for line in (one, two, three))
    assert len(path.read_bytes().splitlines()) == 3


def test_zeros_of_a_lost_disk_cache_are_cut_off(source: Path, tmp_path: Path) -> None:
    one, *_ = read_all(source)
    path = tmp_path / "out.jsonl"
    path.write_bytes(make_answer(one) + bytes(100))
    with open_output(str(path)):
        assert path.read_bytes() == make_answer(one)


@pytest.mark.parametrize("text", [b"a note", b'{"id": "batch_req_9"}\n', b"\n{}\n"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(text)
    with pytest.raises(InvalidConfig, match="was not written by run-batch"):
        with open_output(str(path)):
            pass
    assert path.read_bytes() == text


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "out.jsonl")
    with open_output(path):
        with pytest.raises(InvalidConfig, match="is being written by another run"):
            with open_output(path):
                pass
    with open_output(path):
        pass


@pytest.mark.parametrize("text", [b"one\n\nTWO\nthree\n", b"one\n\ntwo\n"])
def test_the_output_of_another_input_is_refused(
    source: Path, tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"".join(map(make_answer, read_all(source))))
    other = tmp_path / "other.jsonl"
    other.write_bytes(text)
    with open_output(str(path)) as (_, done), other.open("rb") as file:
        with pytest.raises(InvalidConfig, match="belongs to another input"):
            survey(LineReader(file), done)


def test_an_input_may_grow(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"".join(map(make_answer, read_all(source))))
    source.write_bytes(source.read_bytes() + b"\nfour\n")
    with open_output(str(path)) as (_, done), open_lines(str(source)) as reader:
        assert survey(reader, done) == 4
        assert not done.has(read_all(source)[-1])


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_live_input_is_cut_into_the_same_lines(tmp_path: Path, end: bytes) -> None:
    """Also a line of several reads, and one that is cut."""
    texts = [b"a" * 70_000, b"", b"b", b"c" * 200_000, b"d"]
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(texts) + end)
    with closing(LiveInput(lambda: open(path, "rb", buffering=0))) as live:
        with open(path, "rb") as file:
            while line := file.readline(100_000):
                assert live.readline(100_000) == line
        assert live.readline(100_000) == b""
