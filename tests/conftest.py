"""What tests of several rooms share."""

from __future__ import annotations

import gc
from pathlib import Path

from hypothesis import settings
import pytest

from trioserve.testing.tokenizer import tiny_tokenizer

# No test promises a time, and the machine may be busy.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


def pytest_collection_finish() -> None:
    """Keep the collector from what was imported, as a server does that is ready.

    Each time it looks through all objects of torch and transformers takes half a second,
    which adds up to a sixth of the whole run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
