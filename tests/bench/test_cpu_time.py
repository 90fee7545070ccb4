"""bench/chunk_cost.py, bench/instrument.py and bench/hands.py report their figures."""

from __future__ import annotations

from pathlib import Path

import hands
import instrument
from kit.chunk_server import open_chunk_server, read_streams
import pytest

import trioserve


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_streams_are_read_to_their_end(endpoint: str) -> None:
    async with open_chunk_server(3) as server:
        await read_streams(server.port, endpoint, 2, 3)
        sampled = sum(row.sample for plan in server.device.plans for row in plan.rows)
    assert sampled == 2 * 3


def test_steps_are_measured_with_each_instrument() -> None:
    lines = instrument.measure_steps(2, 200, 1)
    assert [line.rpartition(":")[0] for line in lines] == [
        "tasks: 2, a step, bare",
        "tasks: 2, a step, empty hooks adds",
        "tasks: 2, a step, LoopStall adds",
    ]


async def test_a_streamed_token_passes_through_few_files_and_functions() -> None:
    """A reader of the code opens each file, and each function costs time."""
    package = Path(trioserve.__file__).parent
    tokens = await hands.measure(hands.Trace(package))
    first, further, *_ = hands.report(tokens, package)
    assert "files" in first
    num_files, num_functions, _ = (
        float(part.split()[0]) for part in further.partition(":")[2].split(",")
    )
    assert num_files <= 26
    assert num_functions <= 90
