"""Fixtures that tests of several modules share."""

from __future__ import annotations

import gc

import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.trio.run
import pytest


@pytest.fixture(autouse=True)
def restored_hypercorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo install_guard behind each test: it replaces these classes of hypercorn."""
    for module, name in [
        (hypercorn.trio.run, "TCPServer"),
        (hypercorn.protocol, "H11Protocol"),
        (hypercorn.protocol, "H2Protocol"),
        (hypercorn.protocol.h2, "StreamBuffer"),
    ]:
        monkeypatch.setattr(module, name, getattr(module, name))


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Hide other tests' objects from the collector, as a ready server does."""
    gc.collect()
    gc.freeze()
