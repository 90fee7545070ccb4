"""Errors that need no weights are raised before the weights are read.

The weights in these tests belong to no model: reading them raises WeightsBroken.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
import torch
import trio

import trioserve
from trioserve.errors import (
    ForeignOption,
    InvalidConfig,
    StartupError,
    UnsupportedModel,
    UnsupportedQuantization,
    WeightsBroken,
)
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer


def spoil_weights(folder: Path) -> None:
    save_file({"another.weight": torch.zeros(1)}, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = save_tiny_model("llama", tmp_path / "model", vocab_size=512)
    tiny_tokenizer(folder)
    spoil_weights(folder)
    return folder


async def open_engine(folder: Path, **options: Any) -> None:
    async with trioserve.open_engine(str(folder), **options):
        raise AssertionError("it is refused")


def test_asyncio_is_told_where_to_read() -> None:
    with pytest.raises(RuntimeError, match="runs on trio; docs/embedding.rst has"):
        asyncio.run(open_engine(Path("nowhere")))


async def test_the_weights_are_read_last(folder: Path) -> None:
    with pytest.raises(WeightsBroken, match="missing keys"):
        await open_engine(folder)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"chat_template": "/nowhere.jinja"}, "chat_template: .*No such file"),
        ({"logits_processor": ("no_such:Class",)}, "logits_processor: .*imported"),
        (
            {"reasoning_parser": "klingon"},
            "reasoning_parser: 'klingon' is not one of",
        ),
        ({"dtype": "float8"}, "dtype: 'float8' is not one of auto, "),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot be used"),
        ({"max_model_len": 129}, "max_model_len: 129 is more than .* own 128"),
        ({"max_model_len": 1}, "max_model_len: must be at least 2, .* got 1"),
        ({"kv_cache_memory": "10KiB"}, "kv_cache_memory: .* or more by kv_cache"),
        ({"kv_cache_memory": "999TiB"}, "kv_cache_memory: .*free"),
        ({"kv_cache_fraction": 1e-12}, "kv_cache_fraction: "),
    ],
)
async def test_an_option_that_cannot_be_honoured(
    folder: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        await open_engine(folder, **options)


async def test_a_chat_template_with_a_syntax_error(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text("{% if %}")
    with pytest.raises(InvalidConfig, match="chat_template: line 1"):
        await open_engine(folder, chat_template=str(path))


async def test_a_missing_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(WeightsBroken, match="has no tokenizer.json"):
        await open_engine(folder)


@pytest.mark.parametrize(
    "fields, error, reason",
    [
        (
            {"quantization_config": {"quant_method": "awq"}},
            UnsupportedQuantization,
            "by awq",
        ),
        ({"model_type": "klingon"}, UnsupportedModel, "klingon"),
        (
            {"model_type": "bloom"},
            UnsupportedModel,
            "do not call transformers' attention",
        ),
    ],
)
async def test_a_model_that_cannot_run(
    folder: Path, fields: dict[str, Any], error: type[StartupError], reason: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(error, match=reason):
        await open_engine(folder)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"chat_template": "/nowhere.jinja"}, "chat_template"),
        ({"max_model_len": 100_000}, "max_model_len: 100000 is more than"),
        ({"task": "token_embed", "matryoshka": True}, "matryoshka: the task is"),
        ({"task": "token_embed", "pooling": "cls"}, "pooling: nothing is pooled"),
        ({"reasoning_parser": "qwen3"}, "reasoning_parser: .*does not write"),
    ],
)
async def test_an_option_of_a_model_that_pools(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    save_tiny_encoder("bert", tmp_path)
    tiny_tokenizer(tmp_path)
    spoil_weights(tmp_path)
    with pytest.raises(InvalidConfig, match=reason):
        async with trioserve.open_pooling_engine(str(tmp_path), **options):
            raise AssertionError("it is refused")


SLOW_PLUGIN = """
import sys
import time
from trioserve import LogitsProcessor

class Slow(LogitsProcessor):
    name = "slow"

    def apply(self, logits, rows):
        pass

if getattr(sys.modules["__main__"].__spec__, "name", "") == "trioserve.startup.engine_process":
    time.sleep(1000)
"""


@pytest.mark.slow
async def test_an_error_does_not_wait_for_a_slow_engine_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_plugin.py").write_text(SLOW_PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    (folder / "tokenizer.json").unlink()
    with trio.fail_after(180), pytest.raises(
        WeightsBroken, match="has no tokenizer.json"
    ):
        await open_engine(folder, process=True, logits_processor=("slow_plugin:Slow",))


@pytest.mark.slow
async def test_stages_refuse_an_option_before_they_read_weights(folder: Path) -> None:
    with trio.fail_after(180):
        with pytest.raises(InvalidConfig, match="kv_cache_memory: .* 128 must fit"):
            await open_engine(folder, pipeline_parallel_size=2, kv_cache_memory="10KiB")


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"port": 7}, "^port: there is no such option"),
        ({"max_num_seq": 7}, "^max_num_seq: .*; did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "^max_num_seqs: must be at least 1, got 0"),
        ({"max_num_seqs": "7"}, "^max_num_seqs: '7' is not a whole number"),
        (
            {"allowed_media_domains": ("a.example",)},
            "^allowed_media_domains: .* takes no images",
        ),
        (
            {"allowed_local_media_path": "/"},
            "^allowed_local_media_path: .* takes no images",
        ),
    ],
)
async def test_a_program_reads_the_names_of_its_keywords(
    folder: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        await open_engine(folder, **options)


async def test_a_program_reads_a_foreign_keyword_as_it_wrote_it(folder: Path) -> None:
    with pytest.raises(ForeignOption) as caught:
        await open_engine(folder, gpu_memory_utilization=0.9)
    assert str(caught.value) == "write kv_cache_fraction for gpu_memory_utilization"


async def test_an_option_beside_a_whole_configuration_is_named() -> None:
    with pytest.raises(TypeError, match="in the EngineConfig: max_num_seqs"):
        async with trioserve.open_engine(trioserve.EngineConfig(), max_num_seqs=7):
            raise AssertionError("it is refused")
