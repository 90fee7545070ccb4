"""What tests of several rooms share."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
import pytest

from trioserve.testing_tokenizer import tiny_tokenizer

# No test promises a time, and the machine may be busy.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
