"""What tests of several endpoints share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Keep the collector from what other tests loaded, as a server does that is ready."""
    gc.collect()
    gc.freeze()
