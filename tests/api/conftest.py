"""Clients of the shared `server`, and what they read of its device."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    import anthropic

    from trioserve.testing.server import FakeServer


@pytest.fixture
async def openai_client(server: FakeServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def anthropic_client(
    server: FakeServer,
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    # Few processes run these tests, and the import takes seconds.
    import anthropic

    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="any", max_retries=0
    ) as client:
        yield client
