"""bench/processes.py divides what it should, and shows all that it measured."""

from __future__ import annotations

from dataclasses import replace
import math
from pathlib import Path

import processes
import pytest
import trio

from trioserve.engine import Engine
from trioserve.http.metrics import METRICS
from trioserve.testing.fake_device import make_info
from trioserve.types.prompt import Prompt
from trioserve.types.sampling import SamplingParams

SPREAD = processes.loop_stall.Spread(
    p50=0.001, p95=0.002, p99=0.004, longest=0.01, count=10
)
PROBES = processes.Probes(health=SPREAD, lag=SPREAD, inter_token=None, num_failures=0)


def make_look(at: float, num_steps: int, num_turns: int) -> object:
    return processes.Look(
        at=at,
        counts=processes.Counts(
            num_streams=4,
            num_steps=num_steps,
            num_tokens=4 * num_steps,
            turns={0.001: num_turns, 0.002: 2 * num_turns, math.inf: 2 * num_turns},
        ),
        server_cpu=at,
        engine_cpu=at / 2,
        reader_cpu=at / 4,
    )


BEFORE, AFTER = make_look(10.0, 100, 0), make_look(12.0, 1100, 50)
FIGURES = processes.sum_up(BEFORE, AFTER, [0.5, 0.1, 0.2], PROBES)


def make_results() -> object:
    results = [
        processes.Result(
            device=device,
            num_streams=num_streams,
            mode=mode,
            median=replace(
                FIGURES, tokens_per_second=1000.0 * (1 + (mode == "outside"))
            ),
            rounds=(FIGURES,),
        )
        for device in ("model", "2 ms")
        for num_streams in (1, 128)
        for mode in processes.MODES
    ]
    costs = [
        processes.Cost(device="2 ms", mode=mode, start_seconds=2.5, megabytes=300.0)
        for mode in processes.MODES
    ]
    return processes.Results(
        created="today",
        machine="this",
        load=processes.Load(),
        results=tuple(results),
        costs=tuple(costs),
    )


def test_a_turn_is_what_was_counted_in_it() -> None:
    assert FIGURES.step == pytest.approx(0.002)
    assert FIGURES.tokens_per_second == pytest.approx(2000.0)
    assert FIGURES.first_token == 0.2
    assert FIGURES.health_p99 == 0.004
    assert (FIGURES.server_cpu, FIGURES.engine_cpu) == (1.0, 0.5)


def test_a_quantile_lies_where_prometheus_would_see_it() -> None:
    before = {0.001: 10, 0.002: 10, 0.005: 10, math.inf: 10}
    after = {0.001: 60, 0.002: 100, 0.005: 110, math.inf: 110}
    find = processes.find_quantile
    assert find(before, after, 0.5) == pytest.approx(0.001)
    assert find(before, after, 0.7) == pytest.approx(0.0015)
    assert find(before, after, 0.99) == pytest.approx(0.0047)
    # Beyond the last bound nobody knows.
    assert find(before, {**before, math.inf: 20}, 0.5) == 0.005


def test_no_step_at_all_is_no_figure() -> None:
    with pytest.raises(processes.StreamEnded):
        processes.sum_up(BEFORE, BEFORE, [0.1], PROBES)


@pytest.mark.slow
async def test_an_engine_process_without_a_model_answers() -> None:
    info = make_info(processes.FAKE_MODEL_LEN)
    sampling = SamplingParams(max_tokens=5)
    with trio.fail_after(30):
        async with (
            processes.open_core(processes.DEVICES["2 ms"], "outside") as core,
            trio.open_nursery() as nursery,
        ):
            engine = Engine(core, info=info, max_num_sequences=1)
            await nursery.start(engine.run)
            prompt = Prompt(token_ids=(1, 2, 3))
            async with engine.open_stream([prompt], sampling) as deltas:
                token_ids = [t async for delta in deltas for t in delta.token_ids]
            nursery.cancel_scope.cancel()
    assert len(token_ids) == 5


def test_counts_are_read_from_what_a_server_says() -> None:
    numbers = {
        "trioserve_num_requests_open": "3.0",
        "trioserve_steps_total": "1e+06",
        "trioserve_generation_tokens_total": "128.0",
        'trioserve_event_loop_turn_seconds_bucket{le="0.001"}': "0.0",
        'trioserve_event_loop_turn_seconds_bucket{le="+Inf"}': "0.0",
    }
    names = {each.name for each in METRICS}
    assert {name.partition("_bucket")[0] for name in numbers} <= names
    text = "".join(f"{name} {number}\n" for name, number in numbers.items())
    counts = processes.read_counts(text)
    assert (counts.num_streams, counts.num_steps, counts.num_tokens) == (3, 10**6, 128)
    assert set(counts.turns.values()) == {0}
    assert math.inf in counts.turns


def test_the_table_has_a_row_for_each_and_one_ratio_for_two() -> None:
    report = processes.render_results(make_results())
    table, costs, notes = report.split("\n\n")
    rows = table.splitlines()
    assert len(rows) == 2 + 8
    assert rows[2].startswith("| model | 1 | inside | 2.00 | 1000 |  | 200 |")
    assert rows[5].startswith("| model | 128 | outside | 2.00 | 2000 | 2.00 | 200 |")
    assert costs.splitlines()[-1] == "| 2 ms | outside | 2.50 | 300 |"
    assert "medians of 5 rounds" in notes


def test_medians_are_of_each_figure_alone() -> None:
    rounds = [replace(FIGURES, step=step) for step in (0.1, 0.4, 0.2)]
    assert processes.find_medians(rounds) == replace(FIGURES, step=0.2)


def test_it_draws(tmp_path: Path) -> None:
    processes.save_plot(make_results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_commands_differ_in_the_place_of_the_engine_alone() -> None:
    for device in processes.DEVICES.values():
        inside, outside = (
            processes.write_command(device, mode, "m", Path("f"))
            for mode in processes.MODES
        )
        assert len(inside) == len(outside)
        assert sum(a != b for a, b in zip(inside, outside)) == 1


def test_quick_is_quick() -> None:
    load = processes.read_load(processes.parse_arguments(["--quick"]))
    assert (load.rounds, load.devices) == (1, tuple(processes.DEVICES))


@pytest.mark.parametrize("streams", ["0", "129"])
def test_streams_that_would_wait_for_each_other_are_refused(streams: str) -> None:
    with pytest.raises(SystemExit):
        processes.parse_arguments(["--streams", streams])
