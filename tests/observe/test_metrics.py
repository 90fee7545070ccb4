"""What a scrape reads is what happened."""

from __future__ import annotations

from dataclasses import dataclass
import itertools

from prometheus_client.parser import text_string_to_metric_families
import trio

from trioserve.observe import LoopStall, Metrics
from trioserve.observe.metrics import name_fields


def test_a_scrape_reads_gauges_counters_and_histograms() -> None:
    metrics = Metrics(lambda: {"running": 3}, lambda: {"preemptions": 5}, LoopStall())
    metrics.time_to_first_token.observe(0.03)
    metrics.finished.labels("stop").inc()
    text = metrics.render().decode()
    assert "trioserve_running 3.0" in text
    assert "trioserve_preemptions_total 5.0" in text
    assert 'trioserve_time_to_first_token_seconds_bucket{le="0.04"} 1.0' in text
    assert 'trioserve_finished_sequences_total{reason="stop"} 1.0' in text


def scrape(stall: LoopStall) -> dict[str, float]:
    """Return the samples of the stall by name and label."""
    text = Metrics(lambda: {}, lambda: {}, stall).render().decode()
    families = text_string_to_metric_families(text)
    return {
        " ".join((sample.name.removeprefix("trioserve_"), *sample.labels.values())): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


async def test_a_scrape_reads_the_loops_stalls() -> None:
    # Every look at the clock finds it 30 ms later: each step and each turn takes these.
    stall = LoopStall(clock=itertools.count(step=0.03).__next__)
    task = trio.lowlevel.current_task()
    for _ in range(4):
        stall.after_io_wait(0)
        stall.before_io_wait(0)
        stall.before_task_step(task)
        stall.after_task_step(task)
    samples = scrape(stall)
    for name in ("event_loop_turn_seconds", "task_step_seconds"):
        assert samples[f"{name}_bucket 0.02"] == 0
        assert samples[f"{name}_bucket 0.05"] == 4
        assert samples[f"{name}_bucket +Inf"] == 4
        assert samples[f"{name}_count"] == 4
        assert round(samples[f"{name}_sum"], 6) == 0.12
    assert samples[f"slow_task_steps_total {task.name}"] == 4
    assert round(samples[f"slow_task_seconds_total {task.name}"], 6) == 0.12
    assert round(samples[f"slow_task_longest_seconds {task.name}"], 6) == 0.03


def test_a_loop_that_was_never_watched_can_be_scraped() -> None:
    samples = scrape(LoopStall())
    assert samples["task_step_seconds_count"] == 0
    assert samples["event_loop_turn_seconds_sum"] == 0


def test_statistics_are_named_after_their_fields() -> None:
    @dataclass
    class Statistics:
        num_busy: int = 2
        name: str = "not a number"

    assert name_fields("renderer_", Statistics()) == {"renderer_busy": 2}
