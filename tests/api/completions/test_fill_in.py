"""Completions with a text behind the gap (`suffix`)."""

from __future__ import annotations

from pathlib import Path
import shutil
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from trioserve.render.text.fill_in import find_fill_in_form
from trioserve.testing.server import open_fake_server

from ..seen import list_starts

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.mark.parametrize(
    ("tokens", "written"),
    [
        (FIM, "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (
            ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
            "<fim_prefix>a<fim_suffix>b<fim_middle>",
        ),
        (
            ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
            "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",
        ),
        (("[PREFIX]", "[SUFFIX]"), "[SUFFIX]b[PREFIX]a"),
    ],
)
def test_each_family_has_its_own_order(tokens: tuple[str, ...], written: str) -> None:
    form = find_fill_in_form(tokens.__contains__)
    assert form is not None
    assert form.write("a", "b") == written
    for missing in tokens:
        left = [token for token in tokens if token != missing]
        assert find_fill_in_form(left.__contains__) is None


@pytest.fixture(scope="module")
def fim_folder(
    tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("fim")
    shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(FIM))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def test_the_model_sees_both_sides_of_the_gap(fim_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(fim_folder / "tokenizer.json"))
    async with (
        open_fake_server(fim_folder) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
    ):
        await client.completions.create(
            model="fake", prompt=["def f(", "x"], suffix="): pass", max_tokens=2
        )
        starts = list_starts(server)
        texts = {
            tokenizer.decode(start.prompt_token_ids, skip_special_tokens=False)
            for start in starts
        }
        begin, hole, end = FIM
        assert texts == {
            f"{begin}def f({hole}): pass{end}",
            f"{begin}x{hole}): pass{end}",
        }
        assert starts[0].prompt_token_ids[0] == tokenizer.token_to_id(begin)
        wrong: list[dict[str, Any]] = [
            {"prompt": [1, 2]},
            {"prompt": "a", "echo": True},
            {"prompt": "a", "extra_body": {"truncate_prompt_tokens": 3}},
        ]
        for fields in wrong:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="fake", suffix="b", **fields)
            assert caught.value.param == "suffix"


async def test_a_model_without_the_tokens_says_so(
    openai_client: openai.AsyncOpenAI,
) -> None:
    complete = openai_client.completions.create
    with pytest.raises(openai.BadRequestError, match="fill in the middle") as caught:
        await complete(model="fake", prompt="a", suffix="b")
    assert caught.value.param == "suffix"
    # Some clients always send an empty one.
    answer = await complete(model="fake", prompt="a", suffix="", max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
