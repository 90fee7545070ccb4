"""`trioserve models check` tells by the configuration alone whether a model runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from trioserve.__main__ import main
from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig, UnsupportedModel
from trioserve.model.loading.outline import outline_model
from trioserve.testing.models import TINY_HYBRIDS, TINY_MODELS, save_tiny_model


def describe(
    capsys: pytest.CaptureFixture[str], folder: Path, status: int, *options: str
) -> dict[str, Any]:
    """Return the answer for a folder that has no weights."""
    for path in folder.glob("*.safetensors"):
        path.unlink()
    assert main(["models", "check", str(folder), "--json", *options]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("model_type", ["qwen3", "mixtral"])
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


def test_quantised_weights_stay_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], needs_kernels: None
) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    path = folder / "config.json"
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    fields = {"dtype": "float16", "quantization_config": settings}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    assert main(["models", "check", str(folder)]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["weights"].strip() == "stay quantised"
    assert rows["type"].strip() == "bfloat16"


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


@pytest.mark.parametrize(
    ("model_type", "field", "number"),
    [
        ("llama", "num_key_value_heads", 0),
        ("llama", "num_key_value_heads", 3),
        ("llama", "max_position_embeddings", -5),
        ("mixtral", "num_experts_per_tok", 99),
        ("lfm2", "conv_L_cache", 0),
    ],
)
def test_an_impossible_number_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model_type: str,
    field: str,
    number: int,
) -> None:
    sizes = (TINY_MODELS | TINY_HYBRIDS)[model_type]
    config = AutoConfig.for_model(
        model_type, **sizes, architectures=["TinyForCausalLM"]
    )
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: number}))
    reason = describe(capsys, tmp_path, 1)["reason"]
    assert field in reason and str(number) in reason
    with pytest.raises((UnsupportedModel, InvalidConfig)) as caught:
        outline_model(tmp_path, ModelConfig(device="cpu"))
    assert str(caught.value) == reason


def test_a_configuration_that_builds_no_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {**TINY_MODELS["mixtral"], "hidden_act": "nope"}
    architectures = ["MixtralForCausalLM"]
    config = AutoConfig.for_model("mixtral", **sizes, architectures=architectures)
    config.save_pretrained(tmp_path)
    reason = describe(capsys, tmp_path, 1)["reason"]
    assert "no model can be built" in reason and "nope" in reason


def test_a_number_is_named_without_which_config_json_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"model_type": "llama", "num_attention_heads": 0}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert main(["models", "check", str(tmp_path)]) == 2
    assert "num_attention_heads 0 in its configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model_type", "options", "reason"),
    [
        ("gpt2", ["--kernels", "native"], "--kernels: native cannot be used"),
        ("llama", ["--max-model-len", "1000"], "--max-model-len: 1000 is more"),
        (
            *("lfm2", ["--tensor-parallel-size", "2"]),
            "--tensor-parallel-size: the layers of Lfm2ForCausalLM cannot be split: they keep",
        ),
    ],
)
def test_options_decide(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    needs_kernels: None,
    model_type: str,
    options: list[str],
    reason: str,
) -> None:
    folder = save_tiny_model(model_type, tmp_path / "model")
    assert describe(capsys, folder, 0)["runs"]
    assert describe(capsys, folder, 1, *options)["reason"].startswith(reason)


def test_the_kernels_may_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_model("qwen3", tmp_path / "model")
    answer = describe(capsys, folder, 0, "--kernels", "torch")
    assert answer["kernels"] == "torch"
    assert answer["no_kernels"] == "the options say so"


@pytest.mark.parametrize("words", [[], ["a", "b"], ["/nowhere/at/all"]])
def test_there_must_be_one_model(words: list[str]) -> None:
    assert main(["models", "check", *words]) == 2
