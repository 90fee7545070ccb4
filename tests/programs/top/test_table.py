"""The table fits its terminal, and nothing in it can control one."""

from __future__ import annotations

import pytest

from trioserve.programs.top.client import Details, Request, Task
from trioserve.programs.top.config import Order
from trioserve.programs.top.table import (
    sort,
    write_count,
    write_details,
    write_heading,
    write_row,
    write_seconds,
    write_table,
)


def make(id: str, **fields: object) -> Request:
    values = {
        "method": "POST",
        "path": "/v1/completions",
        "phase": "decode",
        "age_seconds": 1.0,
        "prompt_tokens": 10,
        "completion_tokens": 2,
    }
    return Request(id=id, **values | fields)  # type: ignore[arg-type]


def test_a_row_has_a_line_of_80_columns() -> None:
    row = write_row(
        make(
            "x" * 128,
            path="/v1/" + "p" * 200,
            key="a-name-that-is-long",
            age_seconds=123_456.0,
            timeout_seconds=600.0,
            prompt_tokens=1_234_567,
            completion_tokens=123_456,
        ),
        80,
    )
    assert len(row) == 80
    assert row.startswith(
        "xxxxxxxxxxxxxxx~ decode     34h    10m   1.2M 123456 a-name-t~ "
    )
    short = write_row(make("one"), 80)
    assert short.split() == [
        *("one", "decode", "1.0s", "-", "10", "2", "-", "/v1/completions")
    ]
    heading = write_heading([make("one")])
    assert heading.index("PHASE") == short.index("decode")
    assert heading.index("PATH") == short.index("/v1")
    chosen = make("one", model="org/chat\n")
    heading = write_heading([make("two"), chosen])
    row = write_row(chosen, 200, with_model=True)
    assert heading.index("MODEL") == row.index("org/chat\\n")
    assert heading.index("PATH") == row.index("/v1")


def test_clients_cannot_control_the_terminal() -> None:
    row = write_row(make("one", path="/\x1b[2J\x07\u202e", key="\n"), 80)
    assert row.isprintable() and row.isascii()


@pytest.mark.parametrize(
    ("order", "ids"),
    [
        ("age", ["b", "c", "a"]),
        ("phase", ["b", "c", "a"]),
        ("tokens", ["c", "a", "b"]),
        ("key", ["a", "c", "b"]),
        ("id", ["a", "b", "c"]),
    ],
)
def test_each_order(order: Order, ids: list[str]) -> None:
    requests = [
        make("a", age_seconds=1, phase="write", prompt_tokens=5),
        make("b", age_seconds=9, phase="queue", prompt_tokens=0, key="z"),
        make("c", age_seconds=5, phase="decode", prompt_tokens=50, key="k"),
    ]
    assert [each.id for each in sort(requests, order, reverse=False)] == ids
    assert [each.id for each in sort(requests, order, reverse=True)] == ids[::-1]


def test_the_whole_table() -> None:
    lines = list(write_table([make("one"), make("two", phase="queue")], 120))
    assert lines[0] == "2 requests: 1 queue, 1 decode"
    assert [line.split()[0] for line in lines[1:]] == ["ID", "one", "two"]
    assert list(write_table([], 120)) == ["0 requests"]
    asleep = list(write_table([], 120, engines="the engine is asleep"))
    assert asleep == ["0 requests; the engine is asleep"]


def test_numbers_have_six_characters() -> None:
    for number in (0, 999_999, 1_000_000, 99_999_999):
        assert len(write_count(number)) <= 6
    for seconds in (None, 0.0, 99.9, 100.0, 5999.0, 6000.0, 1e12):
        assert len(write_seconds(seconds)) <= 6


def test_details_show_the_tree() -> None:
    child = Task(
        name="child", awaits=["a:1", "b:2", "c:3", "d:4", "trio._core.x:5"], tasks=[]
    )
    root = Task(name="root", awaits=[], tasks=[child], num_tasks_left_out=7)
    details = Details(
        **{name: getattr(make("one"), name) for name in Request.__struct_fields__},
        worker="device",
        deadline_seconds=None,
        kv_blocks=None,
        task=root,
    )
    lines = list(write_details(details))
    assert "phase     decode, device" in lines
    assert "KV blocks unknown" in lines
    assert lines[-6:] == [
        *("root", "    child", "      in b:2", "      in c:3", "      in d:4"),
        "    7 more",
    ]
