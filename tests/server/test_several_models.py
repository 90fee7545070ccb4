"""A server with several models: lists, loads, metrics, and requests that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.config import ServeConfig, build_config
from trioserve.errors import NotEnoughMemory, WeightsNotFound
from trioserve.frontend import PoolingEngine, TextEngine
from trioserve.frontend.models.router import ModelEntry, ModelRouter, open_router
from trioserve.http.state import ServerState
from trioserve.startup import http_server
from trioserve.startup.address import open_address
from trioserve.startup.http_server import HttpServer
from trioserve.testing.fake_device import FakeMemory
from trioserve.testing.server import open_fake_pooling_server, open_fake_server

PROMPT = {"prompt": "Hi", "max_tokens": 3}
Engine = TextEngine | PoolingEngine


class Server:
    """A running server whose loads the test ends.

    Attributes:
      may_load: by model; loads wait for these.
      errors: raised by loads, by model.
      memory: of the chat model.
      state: of the server.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.may_load = {name: trio.Event() for name in ("chat", "other", "embed")}
        self.errors: dict[str, Exception] = {}
        self.memory = FakeMemory(give_seconds=0.0, take_seconds=0.0)
        openers: dict[str, Callable[..., Any]] = {
            "chat": partial(open_fake_server, memory=self.memory),
            "other": open_fake_server,
            "embed": open_fake_pooling_server,
        }
        self.router = ModelRouter(
            [
                ModelEntry(
                    name=name,
                    other_names=(f"{name}-alias",),
                    adapters=("french",) if name == "chat" else (),
                    num_bytes=10,
                    open_engine=lambda n=name, o=opener: self._open(n, o),
                )
                for name, opener in openers.items()
            ]
        )
        self.state: ServerState | None = None
        self.client: Any = None

    @asynccontextmanager
    async def _open(self, name: str, opener: Callable[..., Any]) -> AsyncIterator[Any]:
        await self.may_load[name].wait()
        if error := self.errors.pop(name, None):
            raise error
        async with opener(self._folder) as fake:
            served = fake.state.engine
            served.info = replace(served.info, name=name, memory_bytes=20)
            yield served

    async def post(self, path: str, model: str | None, **fields: Any) -> httpx.Response:
        body = fields if model is None else {"model": model, **fields}
        answer: httpx.Response = await self.client.post(path, json=body)
        return answer

    async def read_states(self) -> dict[str, dict[str, Any]]:
        cards = (await self.client.get("/v1/models")).json()["data"]
        return {each["id"]: each["status"] for each in cards}

    async def wait_state(self, name: str, value: str) -> None:
        while (await self.read_states())[name]["value"] != value:
            await trio.sleep(0.01)


@pytest.fixture
async def several(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> AsyncIterator[Server]:
    async def settle() -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(http_server, "prepare_interpreter", lambda: None)
    monkeypatch.setattr(http_server, "settle_interpreter", settle)
    server = Server(tokenizer_folder)
    config = build_config(ServeConfig, {"port": 0})
    is_ready = trio.Event()
    with open_address(config.bind) as sock:
        port = sock.getsockname()[1]
        http = HttpServer(config, sock)
        server.state = http.state

        async def serve() -> None:
            await http.serve(
                lambda: open_router(server.router),
                lambda address: is_ready.set(),
                http.state.finish_drain,
            )

        nursery.start_soon(serve)
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as server.client:
            await is_ready.wait()
            yield server
        nursery.cancel_scope.cancel()


async def test_lists_and_probes_load_nothing(several: Server) -> None:
    for path in ("/health", "/readyz", "/progressz", "/metrics", "/api/ps"):
        assert (await several.client.get(path)).status_code == 200, path
    assert (await several.client.get("/api/ps")).json() == {"models": []}
    tags = (await several.client.get("/api/tags")).json()["models"]
    assert [each["status"]["value"] for each in tags] == ["unloaded"] * 7
    card = (await several.client.get("/v1/models/embed-alias")).json()
    assert (card["id"], card["root"], card["max_model_len"]) == (
        *("embed-alias", "embed-alias"),
        None,
    )
    states = await several.read_states()
    assert states == dict.fromkeys(states, {"value": "unloaded", "memory_bytes": 10})
    assert [*states] == [
        *("chat", "chat-alias", "french", "other", "other-alias"),
        *("embed", "embed-alias"),
    ]


async def test_a_request_waits_for_its_model_and_the_first_is_the_default(
    several: Server, nursery: trio.Nursery
) -> None:
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await several.post("/v1/completions", None, **PROMPT))

    nursery.start_soon(ask)
    await several.wait_state("chat", "loading")
    assert (await several.read_states())["chat"]["num_waiting"] == 1
    shown = (await several.client.get("/v1/requests")).json()["data"]
    assert [(each["model"], each["phase"]) for each in shown] == [("chat", "load")]
    several.may_load["chat"].set()
    while not answers:
        await trio.sleep(0.01)
    assert answers[0].json()["model"] == "chat"
    card = (await several.client.get("/v1/models/chat")).json()
    assert card["status"] == {"value": "loaded", "memory_bytes": 20}
    assert card["architecture"]["output_modalities"] == ["text"]
    several.may_load["embed"].set()
    vectors = await several.post("/v1/embeddings", "embed:latest", input="Hi")
    assert (vectors.status_code, vectors.json()["model"]) == (200, "embed")
    # The fields of a body choose the endpoint of its model's kind.
    pooled = await several.post("/invocations", "embed", input="Hi")
    assert pooled.json()["object"] == "list"
    wrong = await several.post("/v1/completions", "embed", **PROMPT)
    assert wrong.status_code == 400
    metrics = (await several.client.get("/metrics")).text
    for line in (
        'trioserve_model_state{model_name="embed",state="loaded"} 1.0',
        'trioserve_model_state{model_name="other",state="unloaded"} 1.0',
        'trioserve_model_loads_total{model_name="chat"} 1.0',
        'trioserve_generation_tokens_total{model_name="chat"} 3.0',
        'trioserve_pooling_texts_total{model_name="embed"} 2.0',
    ):
        assert line in metrics
    assert metrics.count("# TYPE trioserve_num_requests_running gauge") == 1


async def test_adapters_choose_their_model(several: Server, tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("Bonjour ")
    assert several.state is not None
    several.state.config = replace(
        several.state.config, adapter_folder=(str(tmp_path),)
    )
    several.may_load["chat"].set()

    async def change(verb: str, name: str, model: str | None = None) -> httpx.Response:
        path = f"/v1/{verb}_lora_adapter"
        return await several.post(path, model, lora_name=name, lora_path=".")

    # The name of the configuration loads the model, which does not have the adapter (any more).
    answer = await several.post("/v1/completions", "french", **PROMPT)
    assert (answer.status_code, answer.json()["error"]["type"]) == (
        404,
        "NotFoundError",
    )
    for name in ("french", "owner/later"):
        assert (await change("load", name)).is_success
        answer = await several.post("/v1/completions", name, **PROMPT)
        assert answer.json()["model"] == name
        assert answer.json()["choices"][0]["text"].startswith("Bon")
    for name in ("other", "embed-alias"):
        refused = await change("load", name)
        assert refused.status_code == 400
        assert "a name of another model" in refused.json()["error"]["message"]
    # Two models get one name at the same time.
    several.may_load["other"].set()
    codes: list[int] = []

    async def load_twice(model: str) -> None:
        codes.append((await change("load", "twice", model)).status_code)

    assert (await several.post("/v1/completions", "other", **PROMPT)).is_success
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load_twice, "chat")
        nursery.start_soon(load_twice, "other")
    assert sorted(codes) == [200, 400]
    several.may_load["embed"].set()
    assert (await change("load", "x", "embed")).status_code == 400
    assert (await change("unload", "owner/later", "chat-alias")).is_success
    answer = await several.post("/v1/completions", "owner/later", **PROMPT)
    assert answer.status_code == 404


async def test_names_and_loads_that_fail(several: Server) -> None:
    for name in ("nope", "../chat", "chat/../chat"):
        unknown = await several.post("/v1/completions", name, **PROMPT)
        assert unknown.status_code == 404
        assert "`chat-alias`, `french`, `other`" in unknown.json()["error"]["message"]
    late = await several.client.post(
        "/v1/completions",
        json={"model": "other", "timeout": 0.05, **PROMPT},
    )
    assert (late.status_code, late.headers["Retry-After"]) == (503, "10")
    assert late.json()["error"]["message"] == "The model is being loaded."
    # The client may come again, so the load goes on.
    await several.wait_state("other", "loading")
    # The wait for a model is a part of the queue.
    for path in ("/v1/completions", "/invocations"):
        late = await several.post(path, "chat", max_queue_seconds=0.05, **PROMPT)
        assert (late.status_code, late.headers["Retry-After"]) == (503, "10")
        await several.wait_state("chat", "loading")
        await several.post("/models/unload", "chat")
    several.may_load["other"].set()
    await several.wait_state("other", "loaded")
    await several.post("/models/unload", "other")
    await several.wait_state("other", "unloaded")
    several.errors["other"] = WeightsNotFound("x", "there is no such folder")
    failed = await several.post("/v1/completions", "other", **PROMPT)
    assert (failed.status_code, failed.headers["Retry-After"]) == (503, "5")
    assert "there is no such folder" in failed.json()["error"]["message"]
    status = (await several.read_states())["other"]
    assert (status["value"], status["failed"]) == ("failed", True)
    assert (await several.client.get("/health")).status_code == 200


async def test_an_operator_loads_and_unloads(several: Server) -> None:
    several.may_load["other"].set()
    answer = await several.post("/models/load", "other-alias")
    assert answer.json() == {"success": True}
    await several.wait_state("other", "loaded")
    loaded = (await several.client.get("/api/ps")).json()["models"]
    assert [each["name"] for each in loaded] == ["other"]
    assert (await several.post("/models/unload", "other")).status_code == 200
    await several.wait_state("other", "unloaded")
    assert (await several.post("/models/load", "nope")).status_code == 404
    assert (await several.post("/models/load", None)).status_code == 400
    assert (await several.client.get("/v1/models/other")).json()["max_model_len"] == 256


async def test_an_operator_lets_a_model_sleep_and_wakes_it(several: Server) -> None:
    client = several.client
    refused = await client.post("/sleep?model=chat")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    several.may_load["chat"].set()
    assert (await several.post("/v1/completions", "chat", **PROMPT)).is_success
    assert (await client.post("/sleep?model=chat-alias&level=2")).is_success
    status = (await several.read_states())["chat"]
    # The budget counts with what the engine holds now.
    assert status == {"value": "sleeping", "memory_bytes": 1}
    refused = await several.post("/v1/completions", "chat", **PROMPT)
    assert refused.status_code == 503
    assert "by order of an operator" in refused.json()["error"]["message"]
    assert (await several.post("/tokenize", "chat", prompt="Hi")).is_success
    assert (await client.post("/wake_up?model=chat")).is_success
    assert (await several.post("/v1/completions", "chat", **PROMPT)).is_success
    assert several.memory.moves == [2, 0]
    assert (await client.post("/sleep?model=chat")).is_success
    several.memory.fails = NotEnoughMemory("out of memory")
    failed = await client.post("/wake_up?model=chat")
    assert (failed.status_code, failed.headers["Retry-After"]) == (503, "10")
    await several.wait_state("chat", "failed")
    reason = (await several.read_states())["chat"]["reason"]
    assert reason.endswith("out of memory")


async def test_ollama_is_told_the_time_of_a_load(several: Server) -> None:
    async def load() -> None:
        await several.wait_state("embed", "loading")
        await trio.sleep(0.1)
        several.may_load["embed"].set()

    answers: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        answers.append((await several.post("/api/embed", "embed", input="Hi")).json())
    answers.append((await several.post("/api/embed", "embed", input="Hi")).json())
    loads = [each["load_duration"] / 1e9 for each in answers]
    assert loads[0] >= 0.1 > loads[1]
    assert loads[0] <= answers[0]["total_duration"] / 1e9
    several.may_load["chat"].set()
    body = {"prompt": "Hi", "options": {"num_predict": 1}, "stream": False}
    loaded = (await several.post("/api/generate", "chat", **body)).json()
    assert 0 < loaded["load_duration"] <= loaded["total_duration"]


async def test_a_drain_ends_the_wait_for_a_model(
    several: Server, nursery: trio.Nursery
) -> None:
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await several.post("/v1/completions", "chat", **PROMPT))

    nursery.start_soon(ask)
    await several.wait_state("chat", "loading")
    assert several.state is not None
    several.state.lifecycle.begin_drain()
    while not answers:
        await trio.sleep(0.01)
    assert (answers[0].status_code, answers[0].headers["Retry-After"]) == (503, "10")
