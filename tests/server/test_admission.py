"""Hostile requests are refused early, and delay other requests only for a bounded time.

Waiting is measured in function calls that the event loop makes between two looks at its
sockets. Unlike seconds, their number does not depend on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
import itertools
from pathlib import Path
import sys
import threading

import httpx2 as httpx
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.observe import LoopStall
from trioserve.testing.server import FakeServer, open_fake_server

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"

# Long enough for a stream that takes a minute or more. The blocks of more sequences are made
# for longer than a test takes.
LONG_LEN = 100_000
open_long_server = partial(open_fake_server, max_model_len=LONG_LEN, max_num_seqs=4)

# Calls that the loop may make without a look at its sockets. Admitting 800 sequences
# takes 39,500, and a step of the engine may add 4,600. Joining and writing 800 choices
# at once took 48,500; making 131,072 sequences before counting them took 1.6 million.
MANY_CALLS = 46_000


@contextmanager
def count_calls() -> Iterator[LoopStall]:
    """Watch the loop of this thread by a clock that counts function calls."""
    num_calls = itertools.count()
    stall = LoopStall(clock=lambda: float(next(num_calls)))
    sys.setprofile(lambda frame, event, argument: next(num_calls) and None)
    trio.lowlevel.add_instrument(stall)
    try:
        yield stall
    finally:
        sys.setprofile(None)
        trio.lowlevel.remove_instrument(stall)


@asynccontextmanager
async def read_beside(server: FakeServer) -> AsyncIterator[None]:
    """Read a long stream while the block runs.

    Asserts that the stream goes on and that the loop often looks at its sockets.
    """
    num_chunks = 0

    async def read(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal num_chunks
        body = {"prompt": [5], "max_tokens": LONG_LEN // 2, "stream": True}
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            async with client.stream("POST", COMPLETION_PATH, json=body) as answer:
                assert answer.status_code == 200
                async for _ in answer.aiter_lines():
                    if num_chunks == 0:
                        task_status.started()
                    num_chunks += 1

    async with trio.open_nursery() as nursery:
        await nursery.start(read)
        before = num_chunks
        with count_calls() as stall:
            yield
        assert num_chunks > before
        nursery.cancel_scope.cancel()
    assert stall.statistics().turns.longest_seconds < MANY_CALLS


async def test_more_sequences_than_there_is_room_for_are_refused_before_they_are_made(
    tokenizer_folder: Path,
) -> None:
    with trio.fail_after(60):
        async with (
            open_long_server(tokenizer_folder) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
            read_beside(server),
        ):
            body = {"prompt": ["a"] * 1024, "n": 128}
            answer = await client.post(COMPLETION_PATH, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


async def test_an_answer_of_many_choices_is_not_made_at_once(
    tokenizer_folder: Path,
) -> None:
    with trio.fail_after(60):
        async with (
            open_long_server(tokenizer_folder, max_queued_requests=2000) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
            read_beside(server),
        ):
            body = {"prompt": ["a"] * 100, "n": 8, "max_tokens": 2}
            answer = await client.post(COMPLETION_PATH, json=body)
    assert len(answer.json()["choices"]) == 800


async def test_a_short_prompt_is_not_behind_long_ones(tokenizer_folder: Path) -> None:
    """The long ones fit, so a single worker tokenizes each of them whole."""
    gate = threading.Event()
    answered: list[str] = []
    async with (
        open_long_server(
            tokenizer_folder, render=RenderConfig(renderer_num_workers=1)
        ) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        read_beside(server),
        trio.open_nursery() as nursery,
    ):
        workers = server.state.engine.renderer.workers

        async def tokenize(name: str, text: str) -> None:
            answer = await client.post("/tokenize", json={"prompt": text})
            assert answer.status_code == 200
            answered.append(name)

        async def wait_until_waiting(num_calls: int) -> None:
            while workers.statistics().waiting < num_calls:
                await trio.lowlevel.checkpoint()

        with trio.fail_after(30):
            nursery.start_soon(workers.run, lambda: gate.wait(30))
            for _ in range(12):
                nursery.start_soon(tokenize, "long", "7" * 50_000)
            await wait_until_waiting(12)
            nursery.start_soon(tokenize, "short", "hi")
            await wait_until_waiting(13)
            gate.set()
    assert answered.index("short") <= 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A server whose only renderer worker does nothing until the gate is open."""

    server: FakeServer
    client: httpx.AsyncClient
    nursery: trio.Nursery
    gate: threading.Event

    @property
    def num_waiting(self) -> int:
        return self.server.state.engine.renderer.room.statistics().num_requests

    def post(self, path: str, body: object, answers: list[httpx.Response]) -> None:
        """Send a request in the background; append its answer to `answers`."""

        async def post() -> None:
            answers.append(await self.client.post(path, json=body))

        self.nursery.start_soon(post)

    async def wait_until_waiting(self, num_requests: int) -> None:
        with trio.fail_after(60):
            while self.num_waiting != num_requests:
                await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_stage(
    tokenizer_folder: Path, render: RenderConfig, *, max_model_len: int = LONG_LEN
) -> AsyncIterator[Stage]:
    gate = threading.Event()
    async with (
        open_long_server(
            tokenizer_folder, render=render, max_model_len=max_model_len
        ) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        trio.open_nursery() as nursery,
    ):
        workers = server.state.engine.renderer.workers
        nursery.start_soon(workers.run, lambda: gate.wait(30))
        yield Stage(server=server, client=client, nursery=nursery, gate=gate)


TEXTS = {
    COMPLETION_PATH: {"prompt": "1" * 100, "max_tokens": 1},
    CHAT_PATH: {"messages": [{"role": "user", "content": "1" * 100}], "max_tokens": 1},
    "/tokenize": {"prompt": "1" * 100},
    "/detokenize": {"tokens": [5] * 100},
}


# Both limits are checked at one place, which each of the paths passes.
REQUESTS = RenderConfig(renderer_num_workers=1, renderer_max_requests=3)
TEXT = RenderConfig(renderer_num_workers=1, renderer_max_text="399")


@pytest.mark.parametrize(
    ("path", "render"),
    [
        *((CHAT_PATH, REQUESTS), ("/tokenize", REQUESTS)),
        *((COMPLETION_PATH, TEXT), ("/detokenize", TEXT)),
    ],
)
async def test_requests_to_a_full_renderer_are_refused_with_retry_after(
    tokenizer_folder: Path, path: str, render: RenderConfig
) -> None:
    answers: list[httpx.Response] = []
    async with open_stage(tokenizer_folder, render) as stage:
        async with read_beside(stage.server):
            for _ in range(3):
                stage.post(path, TEXTS[path], answers)
            await stage.wait_until_waiting(3)
            refused = await stage.client.post(path, json=TEXTS[path])
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.json()["error"]["type"] == "RateLimitError"
            # A short text may still have room. A probe does not count as refused.
            ready = await stage.client.get("/readyz")
            assert ready.status_code == (
                503 if render.renderer_max_requests == 3 else 200
            )
            metrics = (await stage.client.get("/metrics")).text
            assert "trioserve_renderer_requests 3.0" in metrics
            assert "trioserve_renderer_requests_refused_total 1.0" in metrics
            stage.gate.set()
    assert {answer.status_code for answer in answers} == {200}


async def test_a_text_that_can_never_fit_is_refused_by_a_full_renderer_too(
    tokenizer_folder: Path,
) -> None:
    """The error must not invite the client to try again."""
    answers: list[httpx.Response] = []
    render = RenderConfig(renderer_num_workers=1, renderer_max_requests=1)
    async with open_stage(tokenizer_folder, render, max_model_len=256) as stage:
        stage.post(COMPLETION_PATH, TEXTS[COMPLETION_PATH], answers)
        await stage.wait_until_waiting(1)
        body = {"prompt": "1" * 50_000}
        refused = await stage.client.post(COMPLETION_PATH, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "prompt"
        stage.gate.set()


async def test_an_admitted_request_is_finished_though_the_renderer_is_full(
    tokenizer_folder: Path,
) -> None:
    """One worker renders its bad words, its prompts and its answer."""
    answers: list[httpx.Response] = []
    render = RenderConfig(renderer_num_workers=1, renderer_max_requests=2)
    async with open_stage(tokenizer_folder, render) as stage:
        first = {
            "prompt": ["a dog"] * 30,
            "bad_words": ["cat"],
            "max_tokens": 40,
            "logprobs": 1,
        }
        stage.post(COMPLETION_PATH, first, answers)
        await stage.wait_until_waiting(1)
        rest: list[httpx.Response] = []
        for _ in range(30):
            stage.post(COMPLETION_PATH, TEXTS[COMPLETION_PATH], rest)
        with trio.fail_after(60):
            while len(rest) < 29:
                await trio.lowlevel.checkpoint()
        stage.gate.set()
    assert answers[0].status_code == 200
    assert len(answers[0].json()["choices"]) == 30
    assert sorted(answer.status_code for answer in rest) == [200] + [429] * 29
