"""bench/limit.py derives its bounds from the times of products."""

from __future__ import annotations

from kit.products import FORMATS, Shape
import limit
import pytest

LOAD = limit.Load(clients=(1, 2), prompt_tokens=10, output_tokens=4)


def test_a_bound_is_the_time_of_all_prompts_and_all_steps() -> None:
    # Two prompts of 10 tokens take 2 s, and four steps 4 s.
    assert limit.find_bound(2, 1.0, LOAD, 0.1) == pytest.approx(8 / 6)


def test_every_format_has_its_bounds() -> None:
    rows = limit.list_rows(LOAD)
    seconds = {
        "read": 0.5,
        **{"prompt": 512.0, "attention": 0.25},
        **{str(each): float(each) for each in rows},
    }
    least = {f"{name} {key}": time for name in FORMATS for key, time in seconds.items()}
    shape = Shape()
    found = [
        limit.find_limit(name, 1000, least, 12 * shape.kv_numbers, shape, LOAD)
        for name in FORMATS
    ]
    # 12 tokens lie in the cache of one client.
    assert [each.kv for each in found] == [4.0, 2.0, 2.0, 2.0]
    assert found[0].tokens_per_second[2] == pytest.approx(8 / (20 + 4 * (2 + 2 * 4)))
    report = limit.Report(
        created="today",
        machine="this",
        instructions="amx",
        num_threads=2,
        shape=shape,
        load=LOAD,
        num_rounds=1,
        limits=tuple(found),
    )
    assert [
        line.split(" | ")[0] for line in limit.render(report).splitlines()[2:6]
    ] == [f"| {name}" for name in FORMATS]
