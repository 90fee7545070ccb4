"""What is measured is what happened."""

from __future__ import annotations

from dataclasses import dataclass
import time

import trio

from trioserve.observe import LoopMonitor, Metrics
from trioserve.observe.metrics import name_fields


async def test_a_turn_that_blocks_is_reported() -> None:
    turns: list[float] = []
    monitor = LoopMonitor(turns.append)
    trio.lowlevel.add_instrument(monitor)
    await trio.lowlevel.checkpoint()
    # The one blocking call of the suite: it is what the monitor is there to find.
    time.sleep(0.05)  # noqa: ASYNC251
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(monitor)
    assert max(turns) >= 0.05


def test_a_scrape_reads_gauges_counters_and_histograms() -> None:
    metrics = Metrics(lambda: {"running": 3}, lambda: {"preemptions": 5})
    metrics.time_to_first_token.observe(0.03)
    metrics.finished.labels("stop").inc()
    text = metrics.render().decode()
    assert "trioserve_running 3.0" in text
    assert "trioserve_preemptions_total 5.0" in text
    assert 'trioserve_time_to_first_token_seconds_bucket{le="0.04"} 1.0' in text
    assert 'trioserve_finished_sequences_total{reason="stop"} 1.0' in text


def test_statistics_are_named_after_their_fields() -> None:
    @dataclass
    class Statistics:
        num_busy: int = 2
        name: str = "not a number"

    assert name_fields("renderer_", Statistics()) == {"renderer_busy": 2}
