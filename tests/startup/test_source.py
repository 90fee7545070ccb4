"""The server's process finds the same model as the engine process, with less work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trioserve.config import EngineConfig, build_config
from trioserve.errors import InvalidConfig, StartupError
from trioserve.startup.source import ModelKind, find_source, guess_source


def save_model(folder: Path, **described: object) -> Path:
    (folder / "config.json").write_text(json.dumps(described))
    save_file({"a": np.zeros(1)}, folder / "model.safetensors")
    return folder


def save_modules(folder: Path) -> None:
    """Make it a folder of sentence-transformers."""
    entries = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in entries
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True})
    )


def make_config(folder: Path, **options: object) -> EngineConfig:
    return build_config(EngineConfig, {"model": str(folder), **options})


@pytest.mark.parametrize("with_modules", [False, True])
@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("qwen3", "Qwen3Model"),
        ("qwen3", "Qwen3ForSequenceClassification"),
        ("bert", "BertModel"),
        ("bert", "BertForMaskedLM"),
        ("bert", "BertForTokenClassification"),
        ("bert", "HF_ColBERT"),
        ("t5", "T5ForConditionalGeneration"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("llama", None),
        ("bert", None),
    ],
)
def test_a_guess_is_what_the_engine_finds(
    tmp_path: Path, model_type: str, architecture: str | None, with_modules: bool
) -> None:
    named = {} if architecture is None else {"architectures": [architecture]}
    save_model(tmp_path, model_type=model_type, **named)
    if with_modules:
        save_modules(tmp_path)
    config = make_config(tmp_path)
    assert guess_source(config, "all") == find_source(config, "all")


@pytest.mark.parametrize(
    ("model_type", "architecture", "kind", "options"),
    [
        ("bert", "BertModel", "generate", {}),
        ("llama", "LlamaForCausalLM", "pooling", {}),
        ("llama", "LlamaForCausalLM", "generate", {"task": "embed"}),
        ("bert", "BertModel", "all", {"pipeline_parallel_size": 2}),
        ("llama", "LlamaForCausalLM", "all", {"matryoshka": True}),
        ("llama", "LlamaForCausalLM", "all", {"max_images": 7}),
    ],
)
def test_both_refuse_the_same_options(
    tmp_path: Path,
    model_type: str,
    architecture: str,
    kind: ModelKind,
    options: dict[str, object],
) -> None:
    save_model(tmp_path, model_type=model_type, architectures=[architecture])
    config = make_config(tmp_path, **options)
    with pytest.raises(InvalidConfig) as expected:
        find_source(config, kind)
    with pytest.raises(InvalidConfig) as found:
        guess_source(config, kind)
    assert str(found.value) == str(expected.value)


def test_a_file_that_names_nothing_is_refused_by_both(tmp_path: Path) -> None:
    save_model(tmp_path, architectures=[])
    for find in (find_source, guess_source):
        with pytest.raises(StartupError, match="model_type"):
            find(make_config(tmp_path), "all")
