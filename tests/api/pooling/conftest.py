"""A server of a fake model that pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

if TYPE_CHECKING:
    from trioserve.testing.server import FakePoolingServer


@pytest.fixture
async def server(
    request: pytest.FixtureRequest, tokenizer_folder: Path
) -> AsyncIterator[FakePoolingServer]:
    """The mark `server` has options of open_fake_pooling_server."""
    from trioserve.testing.server import open_fake_pooling_server

    options: dict[str, Any] = {}
    for mark in reversed([*request.node.iter_markers("server")]):
        options |= mark.kwargs
    async with open_fake_pooling_server(tokenizer_folder, **options) as server:
        with trio.fail_after(60):
            yield server
