"""`trioserve models check` tells by the configuration alone whether a model runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trioserve.__main__ import main
from trioserve.testing.models import save_tiny_model


def describe(
    capsys: pytest.CaptureFixture[str], folder: Path, status: int
) -> dict[str, Any]:
    """Return the answer for a folder that has no weights."""
    for path in folder.glob("*.safetensors"):
        path.unlink()
    assert main(["models", "check", str(folder), "--json"]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mixtral"])
def test_kernels_run_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    needs_kernels: None,
    model_type: str,
) -> None:
    folder = save_tiny_model(model_type, tmp_path / "model")
    answer = describe(capsys, folder, 0)
    assert answer["no_kernels"] is None and answer["kernels"] == "native"
    assert answer["max_model_len"] == 128 and answer["dtype"] == "float32"
    head_dim = 16 if model_type == "qwen3" else 8
    # 2 layers, 2 heads, keys and values, 4 bytes each.
    assert answer["kv_bytes_per_token"] == 2 * 2 * 2 * head_dim * 4


def test_modules_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_model("gpt2", tmp_path / "model")
    assert main(["models", "check", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "transformers' modules, because" in text
    assert "128 tokens, prompt and output together" in text


def test_it_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoConfig.for_model("bert", architectures=["BertModel"]).save_pretrained(tmp_path)
    assert describe(capsys, tmp_path, 0)["task"] == "embed"


@pytest.mark.parametrize(
    "model_type, reason", [("mamba", "Mamba-1"), ("t5", "not a decoder")]
)
def test_it_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model_type: str, reason: str
) -> None:
    config = AutoConfig.for_model(model_type, architectures=["TinyForCausalLM"])
    config.save_pretrained(tmp_path)
    answer = describe(capsys, tmp_path, 1)
    assert reason in answer["reason"] and not answer["runs"]
    assert main(["models", "check", str(tmp_path)]) == 1
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["a", "b"], ["/nowhere/at/all"]])
def test_there_must_be_one_model(words: list[str]) -> None:
    assert main(["models", "check", *words]) == 2
