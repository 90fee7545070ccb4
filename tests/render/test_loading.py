"""Loading refuses tokenizers and templates that cannot serve."""

from __future__ import annotations

import json
from pathlib import Path
import shutil

import pytest
from tokenizers import Tokenizer, decoders

from trioserve.config import RenderConfig
from trioserve.errors import InvalidConfig, UnsupportedModel, WeightsBroken
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer
from trioserve.testing.tokenizer import tiny_sentencepiece_tokenizer, tiny_tokenizer

CONFIG = RenderConfig()


@pytest.fixture
def folder(tmp_path: Path, byte_level_folder: Path) -> Path:
    """A copy of the folder, for the test to break."""
    return Path(shutil.copytree(byte_level_folder, tmp_path / "model"))


def test_a_folder_without_a_tokenizer_is_broken(tmp_path: Path) -> None:
    with pytest.raises(WeightsBroken, match="tokenizer"):
        load_renderer(tmp_path, CONFIG, info=make_info(64))


def test_a_damaged_tokenizer_file_is_broken(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(WeightsBroken, match="tokenizer"):
        load_renderer(folder, CONFIG, info=make_info(64))


def test_a_tokenizer_that_does_not_join_is_unsupported(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.CTC()
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="one by one"):
        load_renderer(folder, CONFIG, info=make_info(64))


def test_a_slow_tokenizer_is_unsupported(tmp_path: Path) -> None:
    # ByT5's tokenizer is only Python code: UTF-8 bytes without a vocabulary file.
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UnsupportedModel, match="fast"):
        load_renderer(tmp_path, CONFIG, info=make_info(64))


def test_a_template_with_a_syntax_error_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="--chat-template: line 2"):
        load_renderer(
            folder, CONFIG, info=make_info(64), chat_template="{# #}\n{% if %}"
        )
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(WeightsBroken, match="chat template: line 1"):
        load_renderer(folder, CONFIG, info=make_info(64))


async def test_truncation_that_the_file_asks_for_is_not_done(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    renderer = load_renderer(folder, CONFIG, info=make_info(64))
    assert len((await renderer.render_text("xyzxyz")).token_ids) == 6
    assert len((await renderer.render_text("x")).token_ids) == 1


@pytest.mark.parametrize("build", [tiny_tokenizer, tiny_sentencepiece_tokenizer])
def test_a_tiny_tokenizer_has_the_given_size(tmp_path: Path, build: object) -> None:
    assert callable(build)
    build(tmp_path, vocab_size=450)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 450
    with pytest.raises(ValueError, match="the corpus gives"):
        build(tmp_path, vocab_size=100_000)
