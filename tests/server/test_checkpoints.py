"""A request can be cancelled at each of its checkpoints; afterwards nothing of it is left.

A request runs again and again over the same server, in virtual time. The first time it is
cancelled before its first step, then at its first await, then at its second one, until it
ends before that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partialmethod
import json
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tokenizers import Tokenizer
import trio

from trioserve.config import HttpConfig, RenderConfig
from trioserve.engine.generation.core import LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.engine.pooling.core import LocalPoolingCore
from trioserve.engine.pooling.engine import TensorEngine
from trioserve.frontend import PoolingEngine, TextEngine
from trioserve.http.state import ServerState
from trioserve.render import RendererWorkers
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.pooling.scheduler import PoolingScheduler
from trioserve.server.app import create_http_app
from trioserve.testing.fake_device import (
    FakeDevice,
    FakeExecutor,
    FakePoolingDevice,
    make_info,
    make_pooling_info,
)
from trioserve.testing.processes import HostedCore, HostedPoolingCore
from trioserve.testing.renderers import load_pooling_renderer, load_renderer

T = TypeVar("T")

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": SCHEMA},
}
CHATS = "/v1/chat/completions"

GENERATING: dict[str, tuple[str, dict[str, object]]] = {
    "streamed chat": (CHATS, CHAT | {"stream": True}),
    "two answers": (CHATS, CHAT | {"n": 2, "stop": "zebra"}),
    "two streamed answers": (
        CHATS,
        CHAT | {"n": 2, "stream": True, "logprobs": True, "bad_words": ["fox"]},
    ),
    "with a deadline": (CHATS, CHAT | {"stream": True, "timeout": 0.025}),
    "structured": (CHATS, CHAT | {"response_format": FORM}),
    "prompts": ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}),
    "long prompt": ("/v1/completions", {"prompt": [1] * 5000, "max_tokens": 2}),
    "response": ("/v1/responses", {"input": "a", "max_output_tokens": 2}),
    "message": ("/v1/messages", CHAT | {"model": "fake", "stream": True}),
    "lines": (
        "/api/generate",
        {"model": "fake", "prompt": "a", "options": {"num_predict": 2}},
    ),
    "tokens": ("/tokenize", {"prompt": "a"}),
}
# The requests that differ behind the border of processes, which all of them pass.
REMOTE = ("streamed chat", "two answers", "with a deadline", "prompts")

POOLING: dict[str, tuple[str, dict[str, object]]] = {
    "embeddings": ("/v1/embeddings", {"input": ["a", "b c"]}),
    "many texts": ("/v1/embeddings", {"input": ["The quick brown fox. " * 5] * 70}),
    "rerank": ("/rerank", {"query": "a", "documents": ["b", "c"]}),
}

# The run that a task belongs to.
RUN: ContextVar[Canceller | None] = ContextVar("run", default=None)


class Canceller(trio.abc.Instrument):
    """Cancels a request at one of its checkpoints.

    Args:
      number: of the checkpoint; 0 is before the first step.

    Attributes:
      place: the function that waited there.
    """

    def __init__(self, number: int) -> None:
        self.scope = trio.CancelScope()
        self.place = ""
        self._num_left = number
        if number == 0:
            self.scope.cancel()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.context.get(RUN) is not self:
            return
        self._num_left -= 1
        if self._num_left == 0:
            self.place = find_place(task)
            self.scope.cancel()

    @property
    def is_over(self) -> bool:
        """True if the request ended by itself."""
        return self._num_left > 0


def find_place(task: trio.lowlevel.Task) -> str:
    """Return the innermost of our functions that a task waits in."""
    names = [
        frame.f_code.co_qualname
        for frame, _ in task.iter_await_frames()
        if frame.f_globals["__name__"].startswith("trioserve.")
    ]
    # A task that has just ended waits nowhere.
    return names[-1] if names else f"the end of {task.name}"


async def run_virtually(
    work: Callable[..., T],
    *arguments: object,
    limiter: trio.CapacityLimiter,
    abandon_on_cancel: bool = False,
) -> T:
    """Do what trio.to_thread.run_sync does, but without a thread."""
    await trio.lowlevel.checkpoint_if_cancelled()
    with trio.CancelScope(shield=not abandon_on_cancel):
        async with limiter:
            await trio.sleep(0.001)
    return work(*arguments)


@asynccontextmanager
async def open_app(
    engine: TextEngine | PoolingEngine,
) -> AsyncIterator[tuple[ServerState, Any]]:
    """Run an engine, and an app that is called without connections."""
    state = ServerState(config=HttpConfig())
    state.engine = engine
    app = create_http_app(state)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.engine.run)
        app.nursery = nursery
        await app.startup()
        yield state, app
        nursery.cancel_scope.cancel()


async def call(app: Any, path: str, body: bytes, canceller: Canceller) -> list[bytes]:
    """Call the app as a server does; returns the parts of the answer."""
    sent: list[bytes] = []
    half = len(body) // 2
    parts = [(body[:half], True), (body[half:], False)]

    async def receive() -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        if not parts:
            await trio.sleep_forever()
        data, more = parts.pop(0)
        return {"type": "http.request", "body": data, "more_body": more}

    async def send(event: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(event.get("body", b"") or str(event.get("status", "")).encode())

    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {},
    }
    RUN.set(canceller)
    trio.lowlevel.add_instrument(canceller)
    try:
        with canceller.scope:
            await app(scope, receive, send)
    finally:
        trio.lowlevel.remove_instrument(canceller)
        RUN.set(None)
    return sent


def describe(state: ServerState) -> dict[str, object]:
    """Describe everything that requests hold."""
    engine = state.engine
    assert engine is not None
    return {
        "engine": engine.engine.statistics(),
        "workers": engine.renderer.workers.statistics(),
        "room": engine.renderer.room.statistics(),
        "bodies": state.bodies.num_bytes,
        "active": state.lifecycle.num_active,
        "live": [*state.live],
        "background": state.background.num_running,
    }


def count_work(engine: TextEngine | PoolingEngine) -> int:
    """Count the work and the blocks that no step in flight needs."""
    if isinstance(engine, PoolingEngine):
        return engine.engine.statistics().scheduler.num_waiting
    seen = engine.engine.statistics().scheduler
    return seen.num_running + seen.num_waiting + seen.num_used_blocks


async def cancel_everywhere(
    engine: TextEngine | PoolingEngine, requests: dict[str, tuple[str, Any]]
) -> Counter[str]:
    """Cancel each request at each of its checkpoints; returns where that was."""
    places: Counter[str] = Counter()
    async with open_app(engine) as (state, app):
        fresh = describe(state)
        for name, (path, fields) in requests.items():
            body = json.dumps(fields).encode()
            number = 0
            while True:
                canceller = Canceller(number)
                sent = await call(app, path, body, canceller)
                # All is free at once, but for steps in flight.
                await trio.sleep(0.001)
                assert count_work(engine) == 0, f"{name}, {number}: {canceller.place}"
                await trio.sleep(1.0)
                assert describe(state) == fresh, f"{name}, {number}: {canceller.place}"
                if canceller.is_over:
                    break
                places[canceller.place] += 1
                number += 1
            assert sent[0] == b"200", f"{name}: {sent}"
            assert number > 10
        for _ in range(2):
            assert await state.audit.look() == []
    return places


@pytest.fixture(params=[False, True], ids=["here", "in_a_process"])
def is_remote(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def virtual_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_virtually)
    init = partialmethod(RendererWorkers.__init__, run_in_thread=run_virtually)
    monkeypatch.setattr(RendererWorkers, "__init__", init)


async def test_requests_that_generate(
    tokenizer_folder: Path, is_remote: bool, autojump_clock: trio.testing.MockClock
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    info = make_info(8192, vocab_size=tokenizer.get_vocab_size())
    info = replace(info, eos_token_ids=frozenset({1000}))
    scheduler = Scheduler(
        num_blocks=1024,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_len=8192,
        prefix_caching=False,
    )
    device = FakeDevice(lambda seed, index: index % 50, block_size=16)
    executor = FakeExecutor(device.step, step_seconds=0.01, depth=2)
    core = LocalCore(scheduler, executor, info=info)
    engine = TokenEngine(
        HostedCore(core) if is_remote else core, info=info, max_num_sequences=100
    )
    renderer = load_renderer(tokenizer_folder, RenderConfig(), info=info)
    requests = {k: v for k, v in GENERATING.items() if not is_remote or k in REMOTE}
    places = await cancel_everywhere(TextEngine(engine, renderer), requests)
    scheduler.check()
    assert sum(places.values()) > 20 * len(requests)
    assert set(places) >= {
        "ChunkedBody.take_chunks",
        "RenderTurns.hold",
        "TokenStream.__anext__",
    }


async def test_requests_that_pool(
    tokenizer_folder: Path, is_remote: bool, autojump_clock: trio.testing.MockClock
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    info = make_info(256, vocab_size=tokenizer.get_vocab_size())
    pooling = make_pooling_info("embed")
    device = FakePoolingDevice(8)
    core = LocalPoolingCore(
        PoolingScheduler(max_num_seqs=32, max_num_batched_tokens=64),
        FakeExecutor(device.step, step_seconds=0.01),
    )
    engine = TensorEngine(
        HostedPoolingCore(core) if is_remote else core,
        info=info,
        pooling=pooling,
        max_num_inputs=1000,
    )
    renderer = load_pooling_renderer(
        tokenizer_folder, RenderConfig(), info=info, pooling=pooling, sentence=None
    )
    places = await cancel_everywhere(PoolingEngine(engine, renderer), POOLING)
    assert not device.kept
    # Whether a handler waits for its body depends on the order of tasks.
    assert set(places) >= {"RenderTurns.hold", "Results.wait"}
