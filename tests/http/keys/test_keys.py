"""A server with keys answers nobody without one, except monitors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
import os
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import raw_http
from raw_http import write_post
import trio

from trioserve.config import HttpConfig
from trioserve.errors import InvalidConfig, Unauthorized
from trioserve.http.keys.keys import Key, KeyRing
from trioserve.server.page.libraries import load_libraries
from trioserve.server.routes import ROUTES
from trioserve.testing.server import FakeServer, open_fake_server

KEY = "sk-one"
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
OPEN = {
    *("/health", "/livez", "/readyz", "/progressz", "/metrics", "/version"),
    *("/", "/docs", "/ping", "/is_sleeping"),
    *(f"/libraries/{name}" for name in load_libraries()),
}

PATHS = [(route.method, path) for route in ROUTES for path in route.documented_paths]


pytestmark = pytest.mark.server(http=HttpConfig(api_key=(KEY, "sk-two")))


async def test_everything_but_probes_and_documents_is_guarded(
    server: FakeServer, client: httpx.AsyncClient
) -> None:
    for method, path in PATHS:
        for end in ("", "/"):
            answer = await client.request(method, path + end)
            assert (answer.status_code == 401) == (path not in OPEN), path
            assert ("www-authenticate" in answer.headers) == (path not in OPEN)
    # Strangers do not learn which paths there are.
    for path in ("/nope", "/v1/models/x"):
        assert (await client.get(path)).status_code == 401


async def test_a_wrong_key_is_refused_before_the_body_is_read(
    server: FakeServer,
) -> None:
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer sk-"},
        {"Authorization": "Bearer sk-one sk-two"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer \xff"},
        {"X-Api-Key": "sk-three"},
    ):
        half = write_post("/v1/chat/completions", b"{", missing=999, **headers)
        answer = await raw_http.ask(server.port, half)
        assert answer.startswith(b"HTTP/1.1 401"), headers
        assert b'"type":"AuthenticationError"' in answer
        # The error does not repeat the key.
        assert b"sk-" not in answer.partition(b"\r\n\r\n")[2]


async def test_a_known_key_is_taken(client: httpx.AsyncClient) -> None:
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": "bearer  sk-two"},
        {"X-Api-Key": KEY},
        {"Authorization": "Bearer wrong", "X-Api-Key": KEY},
    ):
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert answer.status_code == 200, headers


async def test_the_official_clients_send_it(server: FakeServer) -> None:
    import anthropic

    def ask(key: str) -> None:
        messages: Any = CHAT["messages"]
        options: Any = {"api_key": key, "max_retries": 0}
        chat: Any = {"model": "fake", "messages": messages, "max_tokens": 3}
        with openai.OpenAI(base_url=f"{server.url}/v1", **options) as client:
            with expecting(openai.AuthenticationError, key):
                client.chat.completions.create(**chat)
        with anthropic.Anthropic(base_url=server.url, **options) as other:
            with expecting(anthropic.AuthenticationError, key):
                other.messages.create(**chat)

    def expecting(error: type[Exception], key: str) -> Any:
        return nullcontext() if key == KEY else pytest.raises(error)

    for key in (KEY, "sk-three"):
        await trio.to_thread.run_sync(ask, key)


@pytest.mark.server(http=HttpConfig(api_key=(KEY,), guard_metrics=True))
async def test_metrics_are_guarded_on_request(client: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/metrics/"):
        assert (await client.get(path)).status_code == 401
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await client.get(path, headers=headers)).status_code == 200
    assert (await client.get("/health")).status_code == 200


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], HttpConfig]:
    def write(text: str) -> HttpConfig:
        path = tmp_path / "keys"
        path.write_text(text)
        return HttpConfig(api_key_file=str(path))

    return write


def show(key: str) -> Any:
    return httpx.Headers({"Authorization": f"Bearer {key}"})


def test_a_file_names_its_keys_and_is_read_again(
    write: Callable[[str], HttpConfig],
) -> None:
    ring = KeyRing(write("# people\n\nann sk-a admin\n  bob   sk-b  \n"))
    keys = [ring.check(show(f"sk-{each}")) for each in "ab"]
    assert keys == [Key(name="ann", is_admin=True), Key(name="bob")]
    write("ann sk-c\n")
    ring.reload()
    assert ring.check(show("sk-c")) == Key(name="ann")
    write("ann\n")
    with pytest.raises(InvalidConfig, match="line 1 must have a name and a key"):
        ring.reload()
    assert ring.check(show("sk-c")) == Key(name="ann")


async def test_what_belongs_to_a_key_belongs_to_its_name(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("ann sk-old\nbob sk-bob\n")
    config = HttpConfig(api_key_file=str(path))
    async with open_fake_server(tokenizer_folder, http=config) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:

            async def ask(key: str, method: str, target: str, **options: Any) -> Any:
                headers = {"Authorization": f"Bearer {key}"}
                return await client.request(method, target, headers=headers, **options)

            body = {"input": "Hi", "max_output_tokens": 3}
            stored = await ask("sk-old", "POST", "/v1/responses", json=body)
            target = f"/v1/responses/{stored.json()['id']}"
            path.write_text("ann sk-new\nbob sk-bob\n")
            server.state.keys.reload()
            statuses = [
                (await ask(key, "GET", target)).status_code
                for key in ("sk-old", "sk-bob", "sk-new")
            ]
    assert statuses == [401, 404, 200]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no keys"),
        ("# ann sk-a", "has no keys"),
        ("ann sk-a sk-b", "line 1 must have"),
        ("ann sk-a\nann sk-b", "line 2 repeats a name"),
        ("ann sk-a\nbob sk-a admin", "line 2 repeats a name or a key"),
        ("ann sk-\xe9", "line 1: a key has visible ASCII"),
        ("ann admin", "line 1 has a word for its limits in the place of its key"),
        ("ann weight=2", "line 1 has a word for its limits"),
        ("batch max_requests=8 admin", "line 1 has a word for its limits"),
        ("ann tokens_per_minute=", "line 1 has a word for its limits"),
        ("\x1b[31mred sk-a", "line 1 has a name with characters that cannot be seen"),
        ("a\u202eb sk-a", "line 1 has a name with characters that cannot be seen"),
        ("\ufeff# keys\n", "has no keys"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_its_keys(
    write: Callable[[str], HttpConfig], text: str, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason) as caught:
        KeyRing(write(text))
    assert "sk-" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_name(
    write: Callable[[str], HttpConfig],
) -> None:
    ring = KeyRing(write("\ufeff# keys\nann sk-ann\n"))
    assert ring.check(show("sk-ann")) == Key(name="ann")
    with pytest.raises(Unauthorized):
        ring.check(show("keys"))


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for key in ("", "a b", "a\n", "\xe9"):
        with pytest.raises(InvalidConfig, match="--api-key: a key"):
            KeyRing(HttpConfig(api_key=(key,)))
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(InvalidConfig, match="not a plain file"):
            KeyRing(HttpConfig(api_key_file=str(tmp_path / name)))
    (tmp_path / "long").write_text("#" * 2**20 + "\nann sk-a")
    with pytest.raises(InvalidConfig, match="longer than 1 MiB"):
        KeyRing(HttpConfig(api_key_file=str(tmp_path / "long")))
    with pytest.raises(InvalidConfig, match="cannot read .*: No such file"):
        KeyRing(HttpConfig(api_key_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("weight=2", Key(name="ann", weight=2.0)),
        ("weight=0.5 admin", Key(name="ann", weight=0.5, is_admin=True)),
        (
            "admin max_requests=8 tokens_per_minute=60000",
            Key(name="ann", is_admin=True, max_requests=8, tokens_per_minute=60_000),
        ),
    ],
)
def test_a_line_has_words_behind_the_key(
    write: Callable[[str], HttpConfig], words: str, key: Key
) -> None:
    assert KeyRing(write(f"ann sk-a {words}\n")).check(show("sk-a")) == key


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("weight=0", "line 1 needs a weight from 0.01 to 100"),
        ("weight=-1", "line 1 needs a weight"),
        ("weight=nan", "line 1 needs a weight"),
        ("weight=", "line 1 needs a weight"),
        ("max_requests=0", "line 1 needs a max_requests from 1 to 1000000"),
        ("max_requests=1.5", "line 1 needs a max_requests"),
        ("tokens_per_minute=many", "line 1 needs a tokens_per_minute"),
        ("max_requests=1 max_requests=2", "line 1 has max_requests twice"),
        ("admin admin", "line 1 has admin twice"),
        ("weight", "line 1 must have a name and a key"),
        ("admin=yes", "line 1 must have a name and a key"),
        ("sk-b", "line 1 must have a name and a key"),
        ("# laptop", "line 1 has a comment; comments have lines of their own"),
    ],
)
def test_a_wrong_word_is_refused_without_the_keys(
    write: Callable[[str], HttpConfig], words: str, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason) as caught:
        KeyRing(write(f"ann sk-a {words}\n"))
    assert "sk-" not in str(caught.value)
