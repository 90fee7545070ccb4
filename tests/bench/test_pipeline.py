"""The bench of a pipeline reports its figures."""

from __future__ import annotations

from pathlib import Path

import pipeline
import pytest
import trio

from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor, make_info


def make_rounds() -> dict[str, list[dict[str, float]]]:
    return {
        "one": [
            {"read": r, "first_ms": 900.0, "written": 50.0} for r in (100, 110, 90)
        ],
        "two": [
            {"read": r, "first_ms": 450.0, "written": 90.0} for r in (180, 220, 171)
        ],
        "forced": [{"read": r, "first_ms": 800.0} for r in (90, 110, 90)],
    }


def test_the_table_has_medians_and_empty_cells_for_missing_figures() -> None:
    assert list(pipeline.write_table(make_rounds())) == [
        "|  | one | two | forced |",
        "| --- | --- | --- | --- |",
        "| tokens read per second | 100.0 | 180.0 | 90.0 |",
        "| ms to the first token | 900.0 | 450.0 | 800.0 |",
        "| tokens written per second | 50.0 | 90.0 |  |",
    ]


def test_ratios_are_taken_round_by_round() -> None:
    assert list(pipeline.write_ratios(make_rounds())) == [
        "tokens read per second, two / one: 1.90 times (1.80 to 2.00)",
        "tokens read per second, forced / one: 1.00 times (0.90 to 1.00)",
        "tokens read per second, two / forced: 2.00 times (1.90 to 2.00)",
        "ms to the first token, two / one: 0.50 times (0.50 to 0.50)",
        "tokens written per second, two / one: 1.80 times (1.80 to 1.80)",
    ]


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pipeline.save_plot(make_rounds(), "a title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


async def test_a_turn_measures_the_known_speed_of_a_device(
    autojump_clock: object,
) -> None:
    """In virtual time a step takes 10 ms, and reads a chunk or writes a token."""
    info = make_info(2048)
    core = LocalCore(
        Scheduler(
            num_blocks=1024,
            block_size=16,
            max_num_seqs=pipeline.MAX_NUM_SEQS,
            max_num_batched_tokens=pipeline.CHUNK_TOKENS,
            max_model_len=info.max_model_len,
            prefix_caching=False,
        ),
        FakeExecutor(FakeDevice().step, step_seconds=0.01, depth=2),
        info=info,
    )
    engine = TokenEngine(core, info=info, max_num_sequences=1024)
    opened = pipeline.Opened(engine=engine, stages=())
    load = pipeline.Load(
        num_prompts=4, prompt_tokens=512, num_streams=8, stream_tokens=5
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        figures = await pipeline.take_turn(opened, "two", load, 1)
        nursery.cancel_scope.cancel()
    assert figures["read"] == pytest.approx(25_600)
    # After 2, 4, 6 and 8 steps.
    assert figures["first_ms"] == pytest.approx(50)
    assert figures["written"] == pytest.approx(800)
