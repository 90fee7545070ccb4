"""A scrape shows the numbers that were counted."""

from __future__ import annotations

from collections.abc import Mapping
import itertools
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
import pytest
import trio

from trioserve.observe import Distribution, Histogram, LoopStall
from trioserve.observe.exposition import (
    CounterMetric,
    GaugeMetric,
    HistogramMetric,
    Joining,
    Rows,
    collect_rows,
    join_families,
    read_samples,
    render_families,
)
from trioserve.server.metrics.server import LOOP

ROWS: Rows[Mapping[str, float]] = (
    GaugeMetric("x_depth", "Depth in metres.", lambda source: source["depth"]),
    CounterMetric("x_drops_total", "Drops.", lambda source: source["drops"]),
    CounterMetric(
        "x_calls_total",
        "Calls, by name and result.",
        lambda source: {("a", "ok"): source["calls"], ('"', "\n"): 0.5},
        ("name", "result"),
    ),
)


def test_rows_become_text_with_a_help_line_each() -> None:
    source = {"depth": -1.5, "drops": 2.0, "calls": 3.0}
    lines = render_families(collect_rows(ROWS, source)).decode().splitlines()
    assert lines == [
        "# HELP x_depth Depth in metres.",
        "# TYPE x_depth gauge",
        "x_depth -1.5",
        "# HELP x_drops_total Drops.",
        "# TYPE x_drops_total counter",
        "x_drops_total 2.0",
        "# HELP x_calls_total Calls, by name and result.",
        "# TYPE x_calls_total counter",
        'x_calls_total{name="a",result="ok"} 3.0',
        'x_calls_total{name="\\"",result="\\n"} 0.5',
    ]


def test_a_histogram_counts_by_bucket() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.0, 1.0, 1.1, 2.5, 2.6):
        histogram.observe(value)
    seen = histogram.statistics()
    assert seen == Distribution(
        bounds=(1.0, 2.5), counts=(2, 2, 1), total=pytest.approx(7.2)
    )
    rows: Rows[Histogram] = (
        HistogramMetric("x_size", "Size.", lambda source: source.statistics()),
    )
    lines = render_families(collect_rows(rows, histogram)).decode().splitlines()
    assert lines[2:] == [
        'x_size_bucket{le="1.0"} 2.0',
        'x_size_bucket{le="2.5"} 4.0',
        'x_size_bucket{le="+Inf"} 5.0',
        "x_size_count 5.0",
        f"x_size_sum {seen.total}",
    ]


def test_a_histogram_may_have_labels() -> None:
    histograms = {"a": Histogram((1.0,)), "b": Histogram((1.0,))}
    histograms["b"].observe(0.5)
    rows: Rows[Mapping[str, Histogram]] = (
        HistogramMetric(
            "x_size",
            "Size.",
            lambda source: {
                (name,): each.statistics() for name, each in source.items()
            },
            ("name",),
        ),
    )
    lines = render_families(collect_rows(rows, histograms)).decode().splitlines()
    assert 'x_size_bucket{le="1.0",name="a"} 0.0' in lines
    assert 'x_size_bucket{le="+Inf",name="b"} 1.0' in lines
    assert 'x_size_sum{name="b"} 0.5' in lines


def scrape(stall: LoopStall) -> dict[str, float]:
    """Return the samples of the stall by name and label."""
    text = render_families(collect_rows(LOOP, stall.statistics()))
    families = text_string_to_metric_families(text.decode())
    return {
        " ".join((sample.name.removeprefix("trioserve_"), *sample.labels.values())): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


async def test_a_scrape_reads_the_loops_stalls() -> None:
    # Each reading advances the clock by 30 ms, so each step and each turn takes 30 ms.
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


def test_the_numbers_of_several_processes_become_one() -> None:
    def collect(number: float, **labelled: float) -> Any:
        depths = Histogram((1.0, 2.0))
        depths.observe(number)
        rows: Rows[None] = (
            CounterMetric("x_drops_total", "Drops.", lambda _: number),
            GaugeMetric("x_longest", "Metres.", lambda _: number, joins="max"),
            GaugeMetric("x_shared", "The same.", lambda _: number, joins="own"),
            CounterMetric(
                "x_calls_total",
                "Calls.",
                lambda _: {(name,): value for name, value in labelled.items()},
                ("name",),
            ),
            HistogramMetric("x_depth", "Depths.", lambda _: depths.statistics()),
        )
        return collect_rows(rows, None)

    joinings: dict[str, Joining] = {
        "x_drops": "sum",
        "x_longest": "max",
        "x_shared": "own",
        "x_calls": "sum",
        "x_depth": "sum",
    }
    others = [read_samples(collect(3, a=1, b=2)), read_samples(collect(0.5, b=5, c=7))]
    joined = join_families(collect(1.5, a=4, c=1), others, joinings)
    lines = render_families(joined).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "x_drops_total 5.0",
        "x_longest 3.0",
        "x_shared 1.5",
        'x_calls_total{name="a"} 5.0',
        'x_calls_total{name="c"} 8.0',
        'x_calls_total{name="b"} 7.0',
        'x_depth_bucket{le="1.0"} 1.0',
        'x_depth_bucket{le="2.0"} 2.0',
        'x_depth_bucket{le="+Inf"} 3.0',
        "x_depth_count 3.0",
        "x_depth_sum 5.0",
    ]
