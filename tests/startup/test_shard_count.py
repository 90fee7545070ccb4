"""Too many shards are refused before any of them is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import trioserve
from trioserve.errors import InvalidConfig
from trioserve.startup.core import check_shard_count
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer


@pytest.mark.parametrize(
    "text",
    [
        '{"num_attention_heads": 4}',
        '{"n_head": 4}',
        '{"num_attention_heads": 64, "text_config": {"num_attention_heads": 4}}',
    ],
)
def test_more_shards_than_heads_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    check_shard_count(tmp_path, 4)
    with pytest.raises(InvalidConfig, match="5 processes cannot share 4 heads"):
        check_shard_count(tmp_path, 5)


@pytest.mark.parametrize("text", [None, "no JSON", "[1]", "{}", '{"n_head": "x"}'])
def test_a_file_that_does_not_tell_is_left_to_the_shards(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    check_shard_count(tmp_path, 64)


async def test_an_engine_starts_no_process_for_them(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path, vocab_size=512)
    tiny_tokenizer(tmp_path)
    with trio.fail_after(30), pytest.raises(
        InvalidConfig, match="cannot share 4 heads"
    ):
        async with trioserve.open_engine(str(tmp_path), tensor_parallel_size=64):
            raise AssertionError("it opens")
