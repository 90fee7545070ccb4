"""The server's process finds the same model as the engine process, with less work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trioserve.config import EngineConfig, build_config, list_options
from trioserve.errors import InvalidConfig, StartupError
from trioserve.startup import source
from trioserve.startup.source import (
    ModelKind,
    check_options,
    drop_unused,
    find_source,
    guess_source,
)
from trioserve.types.pooling import Task


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


# ---- options without an effect -----------------------------------------------------

GENERATION: dict[str, Any] = {
    "stop_repetition": (1, 2, 3),
    "logits_processor": ("a:A",),
    "kv_cache_memory": "1GiB",
    "kv_cache_fraction": 0.5,
    "block_size": 32,
    "max_step_seconds": 0.5,
    "enable_prompt_embeds": True,
    "reasoning_parser": "qwen3",
    "tool_call_parser": "hermes",
    "quantization": "int8",
    "max_logprobs": 5,
    "adapter": ("french=adapters/french",),
    "max_adapters": 5,
    "attention_backend": "gather",
    "kv_cache_dtype": "int8",
}
POOLING: dict[str, Any] = {
    "pooling": "cls",
    "matryoshka": True,
    "long_texts": "chunk",
}
IMAGES: dict[str, Any] = {
    "max_images": 4,
    "max_image_bytes": "1MiB",
    "max_image_pixels": 10,
    "allowed_media_domains": ("a.example",),
    "allowed_local_media_path": "/",
    "media_timeout": 1.0,
    "media_num_connections": 1,
    "media_num_workers": 2,
    "max_images_memory": "1GiB",
    "processor_cache_memory": "1MiB",
}
OFF: dict[str, Any] = {
    "prefix_caching": False,
    "async_scheduling": False,
    "generation_config": "none",
    "max_images": 0,
    "processor_cache_memory": "0",
    "tool_call_parser": "none",
}


def check(options: dict[str, Any], task: Task, *, takes_images: bool = False) -> None:
    check_options(build_config(EngineConfig, options), task, takes_images=takes_images)


WRITES = ("embed", "generate", "the model is served for embed and does not write")
POOLS = ("generate", "embed", "does not pool")


@pytest.mark.parametrize(
    ("name", "value", "task", "other_task", "reason"),
    [(*option, *WRITES) for option in GENERATION.items()]
    + [(*option, *POOLS) for option in POOLING.items()],
)
def test_a_task_refuses_options_of_others(
    name: str, value: object, task: Task, other_task: Task, reason: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check({name: value}, task, takes_images=True)
    assert caught.value.field == name
    assert reason in str(caught.value)
    check({name: value}, other_task)


def test_options_of_several_models_count_for_those_that_have_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = save_model(
        tmp_path, architectures=["LlamaForCausalLM"], model_type="llama"
    )
    options = {"task": "embed", "long_texts": "truncate", "kv_cache_memory": "1GiB"}
    config = make_config(folder, max_num_seqs=3, **options)
    shared = {*options, "max_num_seqs"}
    kept = drop_unused(config, shared, told=shared)
    assert f"--kv-cache-memory has no effect on {folder}" in caplog.messages
    # The task is one of them, and decides.
    assert (kept.pooling, kept.scheduler) == (config.pooling, config.scheduler)
    assert kept.cache.kv_cache_memory is None
    # This one has the option for itself.
    with pytest.raises(InvalidConfig, match="^--kv-cache-memory: .* does not write"):
        drop_unused(config, {"task"}, told=())
    # A size that the router has chosen is nothing to tell the operator.
    caplog.clear()
    drop_unused(config, shared, told=())
    assert not caplog.messages


@pytest.mark.parametrize("task", ["generate", "embed"])
@pytest.mark.parametrize(("name", "value"), IMAGES.items())
def test_a_model_without_images_refuses_their_options(
    name: str, value: object, task: Task
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check({"model": "org/name", name: value}, task)
    assert caught.value.field == name
    assert "org/name takes no images" in str(caught.value)
    check({name: value}, "generate", takes_images=True)


def test_one_process_refuses_the_timeout_of_stages() -> None:
    with pytest.raises(InvalidConfig, match="--step-timeout: there are no stages"):
        check({"step_timeout": 5.0}, "generate")
    check({"step_timeout": 5.0, "pipeline_parallel_size": 2}, "generate")


@pytest.mark.parametrize("task", ["generate", "classify"])
@pytest.mark.parametrize(("name", "value"), OFF.items())
def test_turning_off_a_missing_thing_is_no_mistake(
    name: str, value: object, task: Task
) -> None:
    check({name: value}, task)


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_a_default_that_is_written_out_is_no_mistake(task: Task) -> None:
    defaults = {option.name: option.default for option in list_options(EngineConfig)}
    check(defaults, task)


def test_the_lists_name_options() -> None:
    assert {*source._FOR_GENERATION} == GENERATION.keys()
    assert {*source._FOR_POOLING} == POOLING.keys()
    assert {*source._FOR_IMAGES} == IMAGES.keys()
