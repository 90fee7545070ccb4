"""Requests that name logits processors: their checks and their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import threading
from typing import Any

import httpx2 as httpx
import pytest
import trio

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.completions.body import COMPLETION_BODY
from trioserve.api.shared.generation import to_sampling
from trioserve.errors import InvalidParameter, RequestError
from trioserve.testing.server import FakeServer
from trioserve.types.logits import LogitsProcessor, LogitsRow

decode_chat = CHAT_BODY.decode
decode_completion = COMPLETION_BODY.decode


CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
COMPLETION = {"prompt": "Hello", "max_tokens": 3}

BOTH = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


class Picky(LogitsProcessor):
    """Accepts a size, and records the threads that called it."""

    name = "picky"
    threads: set[str] = set()

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        cls.threads.add(threading.current_thread().name)
        if "size" not in arguments:
            raise ValueError("size is required")
        return arguments["size"]

    def apply(self, logits: Any, rows: Sequence[LogitsRow]) -> None:
        raise AssertionError("the fake device asks no plug-in")


class Broken(Picky):
    name = "broken"

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        raise RuntimeError("a defect of its own")


class Slow(Picky):
    """Waits for its event."""

    name = "slow"
    begun = threading.Event()
    go_on = threading.Event()

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        cls.begun.set()
        assert cls.go_on.wait(20)
        return None


class Silent(Picky):
    name = "silent"

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        raise ValueError


pytestmark = pytest.mark.server(logits_processors=(Picky, Broken, Slow, Silent))


async def ask_both(
    client: httpx.AsyncClient, processors: dict[str, object]
) -> list[httpx.Response]:
    """Name the processors in a chat and in a completion, streamed and not."""
    return [
        await client.post(
            path, json=body | {"logits_processors": processors, "stream": streams}
        )
        for path, body in BOTH.items()
        for streams in (False, True)
    ]


# Decoding.


def encode(value: str) -> list[tuple[Any, bytes]]:
    """Return each endpoint's decoder, and a body for it with this value."""
    field = f'"logits_processors":{value}'.encode()
    return [
        (decode_chat, b'{"messages":[{"role":"user","content":""}],%b}' % field),
        (decode_completion, b'{"prompt":"a",%b}' % field),
    ]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("null", ()),
        ("{}", ()),
        ("[]", ()),
        ("[ \n ]", ()),
        ('{"a":null}', (("a", {}),)),
        ('{"a":{"x":[1]},"b":{}}', (("a", {"x": [1]}), ("b", {}))),
    ],
)
def test_names_and_arguments_are_taken(value: str, named: Any) -> None:
    for decode, body in encode(value):
        assert to_sampling(decode(body)).logits_processors == named


def test_values_other_than_objects_are_refused() -> None:
    for value in (
        '["a"]',
        '"a"',
        "5",
        '{"a":5}',
        '{"a":[]}',
        '{"a":{"x":"' + "y" * 16_384 + '"}}',
        "[" * 5000 + "]" * 5000,
        '{"a":' * 2000 + "{}" + "}" * 2000,
        '{"a":{"x":"\\ud800"}}',
        "{" + ",".join(f'"{i}":null' for i in range(17)) + "}",
    ):
        for decode, body in encode(value):
            with pytest.raises(RequestError) as caught:
                to_sampling(decode(body))
            assert caught.value.status == 400, value
            assert caught.value.param in (None, "logits_processors"), value
            assert len(str(caught.value)) < 200, value


# Checks before the request is queued.


async def test_a_request_selects_processors_by_name(client: httpx.AsyncClient) -> None:
    Picky.threads.clear()
    for answer in await ask_both(client, {"picky": {"size": 3}}):
        assert answer.status_code == 200
    assert Picky.threads
    assert threading.main_thread().name not in Picky.threads


async def test_wrong_names_and_arguments_are_400(client: httpx.AsyncClient) -> None:
    rows: list[tuple[dict[str, object], str, str]] = [
        ({"picky": None}, "logits_processors.picky", "size is required"),
        ({"silent": {}}, "logits_processors.silent", "wrong arguments"),
        (
            {"nobody": {}, "picky": {"size": 1}},
            "logits_processors",
            "'nobody' is not loaded; loaded: picky, broken, slow, silent",
        ),
    ]
    for processors, param, message in rows:
        for answer in await ask_both(client, processors):
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["param"], error["message"]) == (param, f"{param}: {message}")


async def test_a_defect_of_a_plug_in_is_a_500_for_its_own_request_only(
    client: httpx.AsyncClient, server: FakeServer
) -> None:
    for answer in await ask_both(client, {"broken": {}}):
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "Internal server error."
    assert server.engine.statistics().num_streams == 0
    for path, body in BOTH.items():
        assert (await client.post(path, json=body)).status_code == 200
    assert (await client.get("/health")).status_code == 200


async def test_a_slow_plug_in_does_not_block_the_event_loop(
    client: httpx.AsyncClient,
) -> None:
    Slow.begun.clear()
    Slow.go_on.clear()
    answers = []

    async def ask() -> None:
        fields = COMPLETION | {"logits_processors": {"slow": {}}}
        answers.append(await client.post("/v1/completions", json=fields))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        try:
            assert await trio.to_thread.run_sync(Slow.begun.wait, 20)
            assert (await client.get("/health")).status_code == 200
            assert answers == []
        finally:
            Slow.go_on.set()
    assert answers[0].status_code == 200


async def test_a_plug_in_that_never_ends_costs_its_own_request(
    client: httpx.AsyncClient, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trioserve.frontend.text.ARGUMENT_SECONDS", 0.05)
    engine: Any = server.state.engine
    workers = engine.renderer.workers
    fresh = engine.engine.statistics()
    Slow.go_on.clear()
    try:
        fields = COMPLETION | {"logits_processors": {"slow": {}}}
        assert (await client.post("/v1/completions", json=fields)).status_code == 500
        # Its thread goes on, but takes no worker's place.
        assert (workers.statistics().busy, workers.statistics().abandoned) == (0, 1)
        assert (await client.post("/v1/completions", json=COMPLETION)).is_success
    finally:
        Slow.go_on.set()
    while workers.statistics().abandoned:
        await trio.sleep(0.001)
    assert engine.engine.statistics() == fresh


async def test_a_client_that_leaves_while_arguments_are_read_leaves_nothing_behind(
    server: FakeServer,
) -> None:
    engine: Any = server.state.engine
    fresh = engine.engine.statistics()
    Slow.begun.clear()
    Slow.go_on.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_slow, engine)
        assert await trio.to_thread.run_sync(Slow.begun.wait, 20)
        nursery.cancel_scope.cancel()
        Slow.go_on.set()
    while engine.engine.statistics() != fresh:
        await trio.lowlevel.checkpoint()
    assert engine.renderer.workers.statistics().busy == 0


async def open_slow(engine: Any) -> None:
    async with engine.open_completion("a", logits_processors=(("slow", {}),)):
        await trio.sleep_forever()


async def test_embedding_programs_get_the_same_errors(
    server: FakeServer,
) -> None:
    engine: Any = server.state.engine
    for named, param in (
        ((("picky", {}),), "logits_processors.picky"),
        ((("nobody", {}),), "logits_processors"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            async with engine.open_completion("a", logits_processors=named):
                pass
        assert caught.value.param == param
    with pytest.raises(RuntimeError, match="a defect of its own"):
        async with engine.open_completion("a", logits_processors=(("broken", {}),)):
            pass
    async with engine.open_completion(
        "a", logits_processors=(("picky", {"size": 1}),), max_tokens=2
    ) as stream:
        (whole,) = await stream.collect()
    assert len(whole.token_ids) == 2
