"""bench/processes.py and bench/start.py report all of their figures."""

from __future__ import annotations

from dataclasses import replace
import math
from pathlib import Path
from typing import Any

from kit.engines.device import DEVICES, MAX_MODEL_LEN
from kit.engines.engine_process import open_core
from kit.engines.server import write_command
from kit.engines.turn import Look, StreamEnded, sum_up
from kit.metrics import (
    LOOP_TURNS,
    SLOW_STEPS,
    STEPS,
    STREAMS,
    TASK_STEPS,
    TOKENS,
    Bucket,
    Metrics,
    find_gains,
    find_longest,
    find_quantile,
)
from kit.probe_process import Probes
from kit.rounds import find_medians
import processes
import pytest
import trio

from trioserve.engine.generation.engine import TokenEngine
from trioserve.programs.bench.measuring.statistics import Spread
from trioserve.server.metrics import METRICS
from trioserve.testing.fake_device import make_info
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

SPREAD = Spread(median=0.001, p90=0.001, p95=0.002, p99=0.004, maximum=0.01, count=10)
PROBES = Probes(health=SPREAD, lag=SPREAD, inter_token=None, num_failures=0)


def render_metrics(num_steps: int) -> str:
    """Write the metrics of a server that has 3 streams."""
    return f"""\
{STREAMS} 3.0
{STEPS} {num_steps}
{TOKENS} {4 * num_steps}
{LOOP_TURNS}_bucket{{le="0.001"}} 0
{LOOP_TURNS}_bucket{{le="+Inf"}} 0
"""


def make_look(at: float, num_steps: int) -> Any:
    return Look(
        at=at,
        metrics=Metrics(render_metrics(num_steps)),
        server_cpu=at,
        engine_cpu=at / 2,
        reader_cpu=at / 4,
        num_events=3 * num_steps,
    )


BEFORE, AFTER = make_look(10.0, 100), make_look(12.0, 1100)
FIGURES = sum_up(BEFORE, AFTER, [0.5, 0.1, 0.2], PROBES)


# Metrics.


def test_counts_are_read_from_a_servers_metrics() -> None:
    metrics = Metrics(render_metrics(10**6))
    assert metrics.read_count(STREAMS) == 3
    assert metrics.read_count(STEPS) == 10**6
    turns = metrics.read_histogram(LOOP_TURNS)
    assert math.inf in turns and set(turns.values()) == {0}
    with pytest.raises(KeyError):
        metrics.read_count("trioserve_nothing")


def test_a_server_has_every_metric_that_the_benches_read() -> None:
    read = {STREAMS, STEPS, TOKENS, LOOP_TURNS, TASK_STEPS, SLOW_STEPS}
    assert read <= {each.name for each in METRICS}


def test_a_quantile_equals_prometheus_estimate() -> None:
    before = {0.001: 10, 0.002: 10, 0.005: 10, math.inf: 10}
    after = {0.001: 60, 0.002: 100, 0.005: 110, math.inf: 110}
    gains = find_gains(before, after)
    assert find_quantile(gains, 0.5) == pytest.approx(0.001)
    assert find_quantile(gains, 0.7) == pytest.approx(0.0015)
    assert find_quantile(gains, 0.99) == pytest.approx(0.0047)
    # Beyond the last bound, the last bound is the estimate.
    beyond = find_gains(before, {**before, math.inf: 20})
    assert find_quantile(beyond, 0.5) == 0.005


@pytest.mark.parametrize(
    ("after", "expected", "text"),
    [
        ({0.1: 9, 1.0: 9, math.inf: 9}, Bucket(above=0.0, up_to=0.1), "0-100"),
        ({0.1: 7, 1.0: 9, math.inf: 9}, Bucket(above=0.1, up_to=1.0), "100-1000"),
        ({0.1: 7, 1.0: 8, math.inf: 9}, Bucket(above=1.0, up_to=None), "> 1000"),
    ],
)
def test_the_longest_duration_is_in_the_highest_bucket_that_grew(
    after: dict[float, int], expected: Bucket, text: str
) -> None:
    bucket = find_longest(find_gains({0.1: 5, 1.0: 5, math.inf: 5}, after))
    assert (bucket, bucket.write()) == (expected, text)


# Figures.


def test_a_turn_has_the_differences_of_two_looks() -> None:
    assert FIGURES.step == pytest.approx(0.002)
    assert FIGURES.tokens_per_second == pytest.approx(2000.0)
    assert FIGURES.events_per_second == pytest.approx(1500.0)
    assert FIGURES.first_token == 0.2
    assert FIGURES.health_p99 == 0.004
    assert (FIGURES.server_cpu, FIGURES.engine_cpu) == (1.0, 0.5)


def test_a_turn_without_a_step_is_an_error() -> None:
    with pytest.raises(StreamEnded):
        sum_up(BEFORE, BEFORE, [0.1], PROBES)


def test_each_figure_has_its_own_median() -> None:
    rounds = [replace(FIGURES, step=step) for step in (0.1, 0.4, 0.2)]
    assert find_medians(rounds) == replace(FIGURES, step=0.2)


# Servers.


def test_several_http_processes_serve_a_device_that_sleeps() -> None:
    command = write_command(DEVICES["2 ms"], "4 HTTP", "m", Path("f"))
    assert command[1:] == ["-m", "kit.engines.http_processes", "2 ms", "4", "f"]
    with pytest.raises(SystemExit):
        processes.parse_arguments(["--modes", "outside,2 HTTP"])
    arguments = ["--modes", "outside,2 HTTP", "--devices", "2 ms"]
    options = processes.parse_arguments([*arguments, "--streams", "512"])
    assert processes.read_load(options).modes == ("outside", "2 HTTP")


@pytest.mark.slow
async def test_an_engine_process_without_a_model_answers() -> None:
    info = make_info(MAX_MODEL_LEN)
    sampling = SamplingParams(max_tokens=5)
    with trio.fail_after(30):
        async with (
            open_core(DEVICES["2 ms"], "outside") as core,
            trio.open_nursery() as nursery,
        ):
            engine = TokenEngine(core, info=info, max_num_sequences=1)
            await nursery.start(engine.run)
            prompt = Prompt(token_ids=(1, 2, 3))
            async with engine.open_stream([prompt], sampling) as deltas:
                token_ids = [t async for delta in deltas for t in delta.token_ids]
            nursery.cancel_scope.cancel()
    assert len(token_ids) == 5
