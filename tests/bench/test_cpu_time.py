"""bench/chunk_cost.py, bench/instrument.py and bench/hands.py report their figures."""

from __future__ import annotations

from pathlib import Path

import chunk_cost
import hands
import instrument
from kit.chunk_server import open_chunk_server, read_streams
import pytest

import trioserve


def test_a_chunks_cost_is_reported_for_both_checkouts_with_their_ratio() -> None:
    costs = {chunk_cost.THIS: [40e-6, 44e-6, 60e-6], chunk_cost.OTHER: [50e-6] * 3}
    assert chunk_cost.report(costs) == [
        "this checkout: 44.0 us a chunk (40.0 to 60.0)",
        "the other checkout: 50.0 us a chunk (50.0 to 50.0)",
        "ratio: 0.88 times (0.80 to 1.20)",
    ]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_streams_are_read_to_their_end(endpoint: str) -> None:
    async with open_chunk_server(3) as server:
        await read_streams(server.port, endpoint, 2, 3)
        sampled = sum(row.sample for plan in server.device.plans for row in plan.rows)
    assert sampled == 2 * 3


def test_the_cost_of_an_instrument_is_the_median_difference_of_the_rounds() -> None:
    costs = {"bare": [1e-6, 2e-6, 3e-6], "LoopStall": [2e-6, 2.5e-6, 9e-6]}
    assert instrument.report("a step", costs) == [
        "a step, bare: 2.00 us",
        "a step, LoopStall adds: 1.00 us (50%)",
    ]


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
