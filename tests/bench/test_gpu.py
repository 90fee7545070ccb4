"""bench/gpu.py runs on a CPU, with a tiny model, so that it can be trusted on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import time
from typing import Any

import gpu
from kit import gpu_engine
from kit.gpu_parts import run_part
import pytest
from warm_start import FORK

MODEL = {"parameters": 3000, "read_in_a_step": 2000, "state_bytes": 0, "experts": 0}
RATES = {"bytes_per_second": 1e6, "flops_per_second": 1e6}


def test_a_small_batch_is_bound_by_memory_and_a_large_one_by_products() -> None:
    assert gpu.find_bound("decode", 1, "tiny", MODEL, RATES) == pytest.approx(4e-3)
    assert gpu.find_bound("decode", 100, "tiny", MODEL, RATES) == pytest.approx(0.4)


def test_a_decode_reads_and_writes_the_states_of_each_sequence(tmp_path: Path) -> None:
    figures: list[Any] = []
    run_part("model", "tiny-hybrid", tmp_path, {}, figures.append)
    # Three of four layers keep 4 heads of 8 x 8 numbers.
    assert figures[0]["state_bytes"] == 3 * 4 * 4 * 8 * 8
    model = {**MODEL, "state_bytes": 1000}
    rates = {"bytes_per_second": 1e6, "flops_per_second": 1e9}
    found = gpu.find_bound("decode", 3, "tiny-hybrid", model, rates)
    assert found == pytest.approx((2 * 2000 + 2 * 3 * 1000) / 1e6)


def test_a_decode_reads_the_experts_that_its_tokens_choose(tmp_path: Path) -> None:
    figures: list[Any] = []
    run_part("model", "tiny-experts", tmp_path, {}, figures.append)
    # Two layers, each with 8 experts of three products.
    assert figures[0]["experts"] == 2 * 8 * 3 * 64 * 32
    model = {**MODEL, "experts": 1600}
    rates = {"bytes_per_second": 1e6, "flops_per_second": 1e9}
    # Each token leaves out three quarters of them.
    for count, share in ((1, 1 / 4), (2, 7 / 16)):
        found = gpu.find_bound("decode", count, "tiny-experts", model, rates)
        assert found == pytest.approx(2 * (400 + 1600 * share) / 1e6)


def test_of_a_prompt_one_token_has_logits_and_each_sees_half_of_the_others() -> None:
    hidden, vocabulary = 128, 1024
    read = {**MODEL, "read_in_a_step": 200_000}
    expected = 2 * 100 * 200_000 - 2 * 99 * hidden * vocabulary
    expected += 4 * 2 * hidden * 100**2 / 2
    found = gpu.find_bound("prefill", 100, "tiny", read, RATES)
    assert found == pytest.approx(expected / 1e6)


LEVEL = {
    "clients": 96,
    "requests": 200,
    "errors": 1,
    "tokens_per_second": 5000.0,
    "first_token": [0.1, 0.25],
    "between_tokens": [0.011, 0.02],
    "health": None,
    "doubts": [],
}


def test_an_aim_is_reached_or_missed() -> None:
    figures = {"decode": {"1": 1e-3}, "prefill": {"2048": 1.0}}
    parts = {
        "rates": {**RATES, "bytes_per_second": 4e6, "device": "H", "torch": "2"},
        "8B: model": MODEL,
        "8B: native": {**figures, "idle": 0.02},
        "8B: gather": {**figures, "idle": 0.2},
        "8B: streams": {"streams": {"chats": LEVEL}},
    }
    lines = gpu.report({"parts": parts, "failures": {"tests": "its time was over"}})
    assert [line.rsplit(maxsplit=1)[1] for line in lines[1:3]] == ["reached", "missed"]
    assert not any("reached" in line for line in lines[3:5])
    assert lines[5].endswith("2.0%  reached") and lines[6].endswith("20.0%")
    assert lines[7].endswith(
        "96 streams: 5000 tokens/s, first token 100 / 250 ms, "
        "between tokens 11 / 20 ms, health -, 1 failed"
    )
    assert lines[-1] == "tests: its time was over"


def test_all_parts_have_time_within_nine_minutes() -> None:
    assert set(gpu.VARIANTS) == {
        name for seconds in gpu.SECONDS.values() for name in seconds
    } - {"model"}
    seconds = [
        value
        for shape in ("8B", "1B")
        for name, value in gpu.SECONDS[shape].items()
        if name not in gpu.ASKED
    ]
    # Processes take time to end, too.
    assert sum(seconds) + gpu.RATES_SECONDS + gpu.TESTS_SECONDS < 9 * 60 - 15


@pytest.mark.parametrize(
    "spans, idle",
    [
        ([(0, 10), (10, 20)], 0.0),
        # The device does two things at once, one within the other.
        ([(5, 8), (0, 10), (6, 12), (16, 20)], 0.2),
        ([(3, 3)], 1.0),
    ],
)
def test_a_device_is_idle_where_no_span_is(
    spans: list[tuple[int, int]], idle: float
) -> None:
    assert gpu_engine.find_idle(spans) == pytest.approx(idle)


def test_a_profile_without_work_is_no_idle_time() -> None:
    with pytest.raises(ValueError, match="saw no work"):
        gpu_engine.find_idle([])


def test_figures_before_the_end_of_the_time_count() -> None:
    output = 'noise\n{"decode": {"1": 1.0}}\n{"decode": {"1": 1.0, "16": 2.0}}\n{"dec'
    assert gpu.read_figures(output) == {"decode": {"1": 1.0, "16": 2.0}}
    assert gpu.read_figures("noise") is None


def test_a_part_that_has_no_time_left_is_told(tmp_path: Path) -> None:
    given: list[float] = []

    def measure(
        name: str, shape: str, folder: Path, fields: Any, seconds: float
    ) -> tuple[Any, str | None]:
        given.append(seconds)
        return {"decode": {}}, "its 5 seconds were over"

    path = tmp_path / "gpu.json"
    run = gpu.Run(path, time.monotonic() + 5, measure)
    assert not run.part("8B: native", "engine", "8B", tmp_path, 60, {})
    assert given[0] <= 5
    late = gpu.Run(None, time.monotonic(), measure)
    assert not late.part("8B: streams", "streams", "8B", tmp_path, 60, {})
    assert len(given) == 1
    assert late.results["failures"] == {"8B: streams": "no time was left"}
    saved = json.loads(path.read_text())
    assert saved["parts"] == {"8B: native": {"decode": {}}}
    assert saved["failures"] == {"8B: native": "its 5 seconds were over"}


def test_a_type_of_keys_and_values_is_for_our_engine_alone(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def measure(
        name: str, shape: str, folder: Path, fields: Any, seconds: float
    ) -> tuple[Any, str | None]:
        given[name] = fields
        return {}, None

    run = gpu.Run(None, time.monotonic() + 60, measure)
    variants = ("native-long", "generate", "streams")
    gpu.measure(run, ["tiny"], variants, tmp_path, "int8")
    assert given["engine"] == {"is_long": True, "kv_cache_dtype": "int8"}
    assert given["streams"] == {"kv_cache_dtype": "int8"}
    assert "kv_cache_dtype" not in given["transformers"]
    assert {"tiny: native-long (int8)", "tiny: generate"} < set(run.results["parts"])


def test_a_long_decode_reads_keys_and_values(tmp_path: Path) -> None:
    figures: list[Any] = []
    run_part("model", "tiny", tmp_path, {}, figures.append)
    fields = {"is_long": True, "kv_cache_dtype": "int8"}
    run_part("engine", "tiny", tmp_path, fields, figures.append)
    # 2 layers, 2 heads and sides of 32 numbers, with a scale of four bytes.
    assert figures[-1]["kv_bytes"] == 2 * 2 * 2 * (32 + 4)
    assert set(figures[-1]["long"]) == {1, 2}
    parts = {
        "rates": {"bytes_per_second": 1e6, "flops_per_second": 1e15},
        "tiny: model": MODEL,
        "tiny: native-long": {**figures[-1], "long": {"1": 1.0, "2": 1.0}},
    }
    shares = [share for *_, share in gpu.list_rows({"parts": parts})]
    bytes_of = [2 * 2000 + count * 288 * tokens for count, tokens in ((1, 64), (2, 32))]
    assert shares == pytest.approx([each / 1e6 for each in bytes_of])


def measure_here(
    name: str, shape: str, folder: Path, fields: Any, seconds: float
) -> tuple[Any, str | None]:
    """Measure a part in this process, which has imported everything."""
    figures: list[Any] = []
    run_part(name, shape, folder, fields, figures.append)
    return json.loads(json.dumps(figures[-1])), None


def test_the_whole_bench_runs_on_a_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "gpu.json", tmp_path / "gpu.png"
    gpu.main(
        ["--folder", str(tmp_path), "--json", str(path), "--plot", str(picture)],
        measure_here,
    )
    results = json.loads(path.read_text())
    assert results["failures"] == {}
    parts = {title.partition(": ")[2]: each for title, each in results["parts"].items()}
    assert {"streams", "sampling"} < set(parts)
    for name in ("native", "native-drawn", "batching", "generate", "gather"):
        assert set(parts[name]["decode"]) == {"1", "4"}
    assert 0 <= parts["gather"]["idle"] <= 1
    for level in parts["streams"]["streams"].values():
        assert level["errors"] == 0 and level["tokens_per_second"] > 0
        assert level["first_token"][0] > 0
    rows = parts["sampling"]["sampling"]["peaked"]["top_p 0.95"]
    assert set(rows) == {"1", "4"} and rows["4"]["torch"][0] > 0
    printed = capsys.readouterr().out
    assert "tiny: batching" in printed and "3 streams: " in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_weights_in_fewer_bits_are_measured(tmp_path: Path) -> None:
    figures: list[Any] = []
    run_part("model", "tiny", tmp_path / "tiny", {}, figures.append)
    for name in ("native-int8", "native-int4"):
        part, fields = gpu.VARIANTS[name]
        run_part(part, "tiny", tmp_path / "tiny", fields, figures.append)
        assert set(figures[-1]["decode"]) == {1, 4}


@pytest.mark.slow
def test_a_part_has_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run
    monkeypatch.setattr(
        *(subprocess, "run"),
        lambda command, **options: run([*FORK, *command[1:]], **options),
    )
    # Where an interpreter finds the neighbours of a script.
    monkeypatch.setenv("PYTHONPATH", str(Path(gpu.__file__).parent))
    fields = {"attention_backend": "varlen"}
    nothing = tmp_path / "nothing"
    figures, reason = gpu.measure_apart("engine", "tiny", nothing, fields, 60)
    assert figures is None and "nothing" in str(reason)
