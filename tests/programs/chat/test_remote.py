"""Answers of servers: trioserve's, and others with their own ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.config import HttpConfig, RemoteConfig
from trioserve.frontend import TextEngine
from trioserve.programs.chat.answers import AnswerFailed, Piece, open_fitting_answer
from trioserve.programs.chat.embedded import EmbeddedModel
from trioserve.programs.chat.remote import find_base, open_remote
from trioserve.testing.server import open_fake_server

from .conftest import END, CannedServer, make_answer, make_events, open_canned_server

HELLO = [{"role": "user", "content": "Hello"}]


async def ask(config: RemoteConfig, **sampling: object) -> list[Piece]:
    async with open_remote(config, None) as model:
        async with model.open_answer(HELLO, sampling) as pieces:
            return [piece async for piece in pieces]


async def test_an_answer_has_what_room_is_left(tokenizer_folder: Path) -> None:
    async with open_fake_server(tokenizer_folder, max_model_len=64) as server:
        async with open_remote(RemoteConfig(url=server.url), None) as model:
            with trio.fail_after(60):
                sampling = {"max_tokens": 1000, "temperature": 0.0}
                async with open_fitting_answer(model, HELLO, sampling) as pieces:
                    reasons = [piece.finish_reason async for piece in pieces]
                assert reasons[-1] == "length"
                # Without any room, the reason is told.
                long = [{"role": "user", "content": "Hello " * 100}]
                with pytest.raises(AnswerFailed) as caught:
                    async with open_fitting_answer(model, long, sampling):
                        pass
    assert caught.value.is_context_full


async def test_the_beginning_of_an_answer_is_continued(canned: CannedServer) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("b", END))
    begun = [*HELLO, {"role": "assistant", "content": "a"}]
    async with open_remote(RemoteConfig(url=canned.url), None) as model:
        for messages in (HELLO, begun):
            async with model.open_answer(messages, {}) as pieces:
                assert [piece.text async for piece in pieces] == ["b", ""]
    *_, (_, plain), (_, body) = canned.requests
    assert "continue_final_message" not in plain
    assert body["messages"] == begun
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False


async def ask_canned(server: CannedServer, answer: bytes) -> list[Piece]:
    server.answers["/chat/completions"] = answer
    return await ask(RemoteConfig(url=server.url))


async def fail(config: RemoteConfig, model: str | None = None) -> str:
    with pytest.raises(AnswerFailed) as caught:
        async with open_remote(config, model) as opened:
            async with opened.open_answer(HELLO, {}) as pieces:
                async for _ in pieces:
                    pass
    return str(caught.value)


async def test_trioserve_answers(tokenizer_folder: Path) -> None:
    async with open_fake_server(tokenizer_folder) as server:
        with trio.fail_after(60):
            pieces = await ask(RemoteConfig(url=server.url), max_tokens=9)
    text = "".join(piece.text for piece in pieces)
    assert text and server.answer.startswith(text)
    assert pieces[-1].finish_reason == "length"


async def test_a_stopped_answer_is_cancelled_at_the_server(
    tokenizer_folder: Path,
) -> None:
    async with open_fake_server(tokenizer_folder, step_seconds=0.01) as server:
        with trio.fail_after(60):
            async with open_remote(RemoteConfig(url=server.url), None) as model:
                async with model.open_answer(HELLO, {}) as pieces:
                    await anext(aiter(pieces))
                    assert server.engine.statistics().num_streams == 1
                while server.engine.statistics().num_streams:
                    await trio.sleep(0.01)


async def test_a_model_that_is_loaded_here_has_adapters(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "answer.txt").write_text("Bonjour le monde! ")
    async with open_fake_server(tokenizer_folder) as server:
        assert isinstance(server.state.engine, TextEngine)
        model = EmbeddedModel(server.state.engine)
        await server.state.engine.load_adapter("french", tmp_path)
        assert await model.list_models() == ["fake", "french"]
        with pytest.raises(AnswerFailed, match="no 'nobody'; there are fake, french"):
            await model.choose("nobody")
        for name, begin in {"french": "Bon", "fake": "The"}.items():
            await model.choose(name)
            assert model.name == name
            async with model.open_answer(HELLO, {"max_tokens": 4}) as pieces:
                text = "".join([piece.text async for piece in pieces])
            assert text.startswith(begin)


async def test_keys_are_explained(tokenizer_folder: Path, tmp_path: Path) -> None:
    http = HttpConfig(api_key=("sk-right",))
    async with open_fake_server(tokenizer_folder, http=http) as server:
        with trio.fail_after(60):
            where = server.url
            assert await fail(RemoteConfig(url=where)) == (
                f"{where} wants a key: --api-key or --api-key-file"
            )
            wrong = RemoteConfig(url=where, api_key="sk-wrong")
            assert await fail(wrong) == f"{where} does not take this key"
            (tmp_path / "key").write_text("sk-right\n")
            right = RemoteConfig(url=where, api_key_file=str(tmp_path / "key"))
            assert await ask(right, max_tokens=3)


async def test_all_requests_of_a_conversation_name_its_session(
    canned: CannedServer,
) -> None:
    """A proxy with several servers chooses by it."""
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    for _ in range(2):
        async with open_remote(RemoteConfig(url=canned.url), None) as model:
            for _ in range(2):
                async with model.open_answer(HELLO, {}) as pieces:
                    assert [piece async for piece in pieces]
    sessions = [
        line
        for head, _ in canned.requests
        for line in head.split("\r\n")
        if line.startswith("X-Session-Id: chat-")
    ]
    assert len(sessions) == len(canned.requests) == 6
    assert len(set(sessions[:3])) == len(set(sessions[3:])) == 1
    assert sessions[0] != sessions[3]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/base/v1/"])
async def test_the_first_model_is_asked(canned: CannedServer, path: str) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    pieces = await ask(RemoteConfig(url=canned.url + path), temperature=0.5)
    assert "".join(piece.text for piece in pieces) == "Hi"
    [_, (head, body)] = canned.requests
    prefix = "/base" if "base" in path else ""
    assert head.startswith(f"POST {prefix}/v1/chat/completions HTTP/1.1\r\n")
    assert body == {
        "model": "first",
        "messages": HELLO,
        "stream": True,
        "temperature": 0.5,
    }


async def test_another_model_is_asked_by_name(canned: CannedServer) -> None:
    config = RemoteConfig(url=canned.url)
    async with open_remote(config, "second") as model:
        assert model.name == "second"
    assert await fail(config, "third") == (
        f"{canned.url} has no model 'third'; it has first, second"
    )
    canned.answers["/models"] = make_answer(b'{"data": []}')
    async with open_remote(config, "third") as model:
        assert model.name == "third"
    assert await fail(config) == f"{canned.url} lists no model; name one by --model"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_both_names_of_reasoning(canned: CannedServer, name: str) -> None:
    chunk: Any = {"choices": [{"delta": {name: "why", "content": None}}]}
    usage: Any = {"choices": [], "usage": {"total_tokens": 3}}
    body = b": a comment\r\n\r\n" + make_events(chunk, "so", END, usage)
    pieces = await ask_canned(canned, make_answer(body + b"data: [DONE]\n\n"))
    assert [(piece.reasoning, piece.text) for piece in pieces] == [
        ("why", ""),
        ("", "so"),
        ("", ""),
    ]


BROKEN = "ended in the middle of the answer"
OTHER = "the server sends no events that a chat could show"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        # It dies, with and without a hint to the client.
        (make_answer(make_events("Hi"), length=999), f"{{url}} {BROKEN}: "),
        (make_answer(make_events("Hi")), f"{{url}} {BROKEN}"),
        (make_answer(make_events("Hi") + b'data: {"cho'), f"{{url}} {BROKEN}"),
        (b"", "{url} gives no answer in HTTP"),
        (b"SSH-2.0-x\r\n", "{url} gives no answer in HTTP"),
        (make_answer(b"data: what\n"), OTHER),
        (
            make_answer(make_events("Hi", {"error": {"message": "It died."}})),
            "the server broke the answer off: It died.",
        ),
        (
            make_answer(make_events("Hi", {"error": "It died.", "choices": []})),
            "the server broke the answer off: It died.",
        ),
        (make_answer(b"<html>", status=404), "{url} does not speak OpenAI's API"),
        (make_answer(b"<html>", status=500), "{url} answers 500: no reason"),
        (
            make_answer(b'{"error": {"message": "no pictures"}}', status=400),
            "{url} answers 400: no pictures",
        ),
        (make_answer(b'{"detail": "busy"}', status=503), "{url} answers 503: busy"),
        (make_answer(b"[]", status=503), "{url} answers 503: no reason"),
    ],
)
async def test_failures_are_explained(
    canned: CannedServer, answer: bytes, message: str
) -> None:
    canned.answers["/chat/completions"] = answer
    text = await fail(RemoteConfig(url=canned.url))
    assert text.startswith(message.format(url=canned.url))


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 256 tokens. However, ...",
        "the request exceeds the available context size, try increasing it",
        "The prompt (total length 9000) is too long, max_model_len is 4096",
    ],
)
def test_a_full_context_is_recognised(message: str) -> None:
    assert AnswerFailed(message).is_context_full
    assert not AnswerFailed("the image cannot be read").is_context_full


ADVICE = "start one by `trioserve serve`, or name it by --url"


async def test_no_server_is_explained(tmp_path: Path, canned: CannedServer) -> None:
    with trio.socket.socket() as sock:
        await sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert await fail(RemoteConfig(url=url)) == (
            f"no server answers at {url}: Connection refused; {ADVICE}"
        )
    path = str(tmp_path / "none")
    assert await fail(RemoteConfig(uds=path)) == (
        f"no server answers at {path}: No such file or directory; {ADVICE}"
    )
    url = canned.url.replace("http", "https")
    assert (await fail(RemoteConfig(url=url))).startswith(f"{url} speaks no TLS")
    canned.answers["/models"] = make_answer(b"<html>")
    assert await fail(RemoteConfig(url=canned.url)) == (
        f"{canned.url} does not speak OpenAI's API"
    )


async def test_a_unix_socket_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with open_canned_server(path) as server:
        server.answers["/chat/completions"] = make_answer(make_events("Hi", END))
        pieces = await ask(RemoteConfig(uds=str(path)))
    assert "".join(piece.text for piece in pieces) == "Hi"


async def test_half_a_character_can_be_sent(canned: CannedServer) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("Hi", END))
    async with open_remote(RemoteConfig(url=canned.url), None) as model:
        messages = [{"role": "user", "content": "\ud800"}]
        async with model.open_answer(messages, {}) as pieces:
            assert [piece.text async for piece in pieces] == ["Hi", ""]


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:8000", "http://a:8000/v1"),
        ("https://[::1]:8/x/v1/", "https://[::1]:8/x/v1"),
        ("http://bücher.test", "http://xn--bcher-kva.test/v1"),
        ("http://user:secret@a", "http://a/v1"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert find_base(url) == base
