"""bench/gpu.py runs on a CPU, with a tiny model, so that it can be trusted on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import gpu
import pytest

SHAPE = {"hidden_size": 10, "num_hidden_layers": 2, "vocab_size": 100}
MODEL = {"parameters": 3000, "read_in_a_step": 2000}
RATES = {"bytes_per_second": 1e6, "flops_per_second": 1e6}


def test_a_small_batch_is_bound_by_memory_and_a_large_one_by_products() -> None:
    assert gpu.find_bound("decode", 1, SHAPE, MODEL, RATES) == pytest.approx(4e-3)
    assert gpu.find_bound("decode", 100, SHAPE, MODEL, RATES) == pytest.approx(0.4)


def test_of_a_prompt_one_token_has_logits_and_each_sees_half_of_the_others() -> None:
    expected = (2 * 100 * 2000 - 2 * 99 * 1000 + 4 * 2 * 10 * 100**2 / 2) / 1e6
    found = gpu.find_bound("prefill", 100, SHAPE, MODEL, RATES)
    assert found == pytest.approx(expected)


def test_an_aim_is_reached_or_missed() -> None:
    figures = {"decode": {"1": 1e-3}, "prefill": {"2048": 1.0}}
    parts = {
        "rates": {**RATES, "bytes_per_second": 4e6, "device": "H", "torch": "2"},
        "8B: model": MODEL,
        "8B: native": figures,
        "8B: gather": figures,
    }
    lines = gpu.report({"parts": parts, "failures": {"tests": "its time was over"}})
    assert [line.rsplit(maxsplit=1)[1] for line in lines[1:3]] == ["reached", "missed"]
    assert not any("reached" in line for line in lines[3:])
    assert lines[-1] == "tests: its time was over"


@pytest.mark.slow
def test_a_part_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    gpu.main(
        ["--shapes", "tiny", "--variants", "varlen,native", "--json", str(path)]
        + ["--folder", str(tmp_path)]
    )
    results = json.loads(path.read_text())
    assert set(results["parts"]) >= {"rates", "tiny: model", "tiny: native"}
    decodes = results["parts"]["tiny: native"]["decode"]
    assert set(decodes) == {"1", "4"} and all(map(float, decodes.values()))
    printed = capsys.readouterr().out
    assert "tiny: native" in printed and "%" in printed
    if "tiny: varlen" not in results["parts"]:
        assert "varlen cannot be used" in results["failures"]["tiny: varlen"]
