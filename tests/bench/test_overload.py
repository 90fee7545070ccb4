"""bench/overload.py counts answers by whether they came in time."""

from __future__ import annotations

from collections.abc import Callable
import itertools
import json
from typing import Any

import overload
import pytest
import trio
import trio.testing


async def test_each_answer_is_counted_once(
    listen: Any,
    write_answer: Callable[..., bytes],
    nursery: trio.Nursery,
) -> None:
    statuses = itertools.cycle(["200 OK", "503 Busy", "504 Late", "400 Wrong"])
    bodies = []

    async def answer(line: str, body: bytes) -> bytes:
        assert line == "POST /v1/completions"
        bodies.append(json.loads(body))
        return write_answer(next(statuses), b"{}")

    fake = await listen(nursery, answer)
    load = overload.Load(seconds=0.4, input_words=3)
    with trio.fail_after(60):
        arrivals = overload.Arrivals(fake.url, load, rate=50.0, deadline=5.0)
        outcome = await arrivals.run(5.0)
    counts = (outcome.in_time, outcome.refused, outcome.late, len(outcome.errors))
    assert sum(counts) == outcome.num_requests == len(bodies)
    assert max(counts) - min(counts) <= 1
    assert len({body["prompt"] for body in bodies}) > 1
    assert {body["timeout"] for body in bodies} == {5.0}
    assert outcome.goodput == pytest.approx(outcome.in_time / 0.4, rel=0.5)
