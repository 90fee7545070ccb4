"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Generator
import gc
from pathlib import Path

from hypothesis import settings
import pytest

from trioserve.testing.tokenizer import tiny_tokenizer

# No test promises a time, and the machine may be busy.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector from what is imported, as a server does that is ready.

    Each time it looks through all objects of torch and transformers takes half a second,
    which adds up to a quarter of the imports' time and to a sixth of the whole run's.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
