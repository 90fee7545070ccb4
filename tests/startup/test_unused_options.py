"""No option is accepted and ignored."""

from __future__ import annotations

from typing import Any

import pytest

from trioserve.config import EngineConfig, build_config, list_options
from trioserve.errors import InvalidConfig
from trioserve.startup import source
from trioserve.startup.source import check_options
from trioserve.types.pooling import Task

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
    "attention_backend": "gather",
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


@pytest.mark.parametrize(("name", "value"), GENERATION.items())
def test_a_model_that_pools_refuses_options_of_generation(
    name: str, value: object
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check({name: value}, "embed")
    assert caught.value.field == name
    assert "the model is served for embed and does not write" in str(caught.value)
    check({name: value}, "generate")


@pytest.mark.parametrize(("name", "value"), POOLING.items())
def test_a_model_that_generates_refuses_options_of_pooling(
    name: str, value: object
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check({name: value}, "generate", takes_images=True)
    assert caught.value.field == name
    assert "does not pool" in str(caught.value)
    check({name: value}, "embed")


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
