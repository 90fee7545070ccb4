"""Servers for real clients: the default model, and a model that follows a script.

The tests import a client when they run, because the imports take seconds: each process of
pytest collects all tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from server_process import SERVE, start_process
import trio

from trioserve.config import RenderConfig
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import IM_END


@pytest.fixture(scope="session")
def default_url() -> Iterator[str]:
    """A server of the default model, without any option that changes its answers."""
    with ExitStack() as stack:
        command = [*SERVE, "--port", "0", "--num-threads", "1"]
        command += ["--enable-tokenizer-info-endpoint"]
        yield start_process(stack, command).url


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the clients from asking services of their own, and collect what they leave.

    Their connections stay open until the garbage collector finds them, which warns.
    """
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    yield
    gc.collect()


def write_call(name: str, /, **arguments: Any) -> str:
    """Write a call as a model of the family hermes does."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


# The turns of a model that looks at the weather, and then gives a structured answer.
SCRIPT = (
    "Let me see. " + write_call("get_weather", city="Rome"),
    write_call("final_result", name="Rome", is_sunny=True),
    "Rome is sunny.",
)


@pytest.fixture
def open_scripted(
    tokenizer_folder: Path,
) -> Callable[..., AbstractAsyncContextManager[FakeServer]]:
    """Return a function that opens a server whose answers follow a script."""

    @asynccontextmanager
    async def open_server(*script: str) -> AsyncIterator[FakeServer]:
        with trio.fail_after(60):
            async with open_fake_server(
                tokenizer_folder,
                render=RenderConfig(tool_call_parser="hermes"),
                answer=script or SCRIPT,
                eos_token=IM_END,
                max_model_len=4096,
            ) as server:
                yield server

    return open_server
