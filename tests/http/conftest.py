"""What tests of several endpoints share."""

from __future__ import annotations

from collections.abc import Iterator
import gc

import pytest


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Keep the collector from what other tests loaded, as a server does that is ready."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
