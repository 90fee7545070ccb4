"""Renderers over the two kinds of tokenizers, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from trioserve.config import RenderConfig
from trioserve.render import Renderer, load_renderer
from trioserve.testing import make_info
from trioserve.testing_tokenizer import tiny_sentencepiece_tokenizer, tiny_tokenizer

MAX_MODEL_LEN = 256


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sentencepiece_tokenizer(tmp_path_factory.mktemp("sentencepiece"))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A renderer, and its tokenizer once more as the oracle."""

    renderer: Renderer
    oracle: Tokenizer

    def encode(self, text: str) -> list[int]:
        return self.oracle.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return self.oracle.decode(ids, skip_special_tokens=skip_special_tokens)


def load_subject(folder: Path) -> Subject:
    return Subject(
        renderer=load_renderer(folder, RenderConfig(), info=make_info(MAX_MODEL_LEN)),
        oracle=Tokenizer.from_file(str(folder / "tokenizer.json")),
    )


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Subject:
    return load_subject(byte_level_folder)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: Path) -> Subject:
    return load_subject(sentencepiece_folder)


@pytest.fixture(scope="session", params=["byte_level", "sentencepiece"])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each kind in turn."""
    found: Subject = request.getfixturevalue(request.param)
    return found
