"""In a pipe, the answer alone is on standard output, and each mistake is one sentence."""

from __future__ import annotations

from collections.abc import Callable
import io
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest
import trio
from warm_start import FORK

from trioserve.__main__ import main
from trioserve.testing.server import open_fake_server

from .conftest import END, CannedServer, make_answer, make_events

Run = Callable[..., Any]


@pytest.fixture
def run(
    canned: CannedServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    """Run the command in a thread; returns its exit code, output and errors."""

    async def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        content = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        monkeypatch.setattr(sys, "stdin", content)
        command = ["chat", "--url", canned.url, *arguments]
        code = await trio.to_thread.run_sync(main, command)
        out, err = capfd.readouterr()
        return code, out, err.replace(canned.url, "URL")

    return run


def answer(canned: CannedServer, *events: Any) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events(*events))


async def test_the_answer_alone_is_printed(canned: CannedServer, run: Run) -> None:
    thought: Any = {"choices": [{"delta": {"reasoning": "hm"}}]}
    answer(canned, thought, "It is ", "\x1b[1mé\ud800", END)
    code, out, err = await run(stdin="What\nis it?\n")
    # No terminal reads it, so the text is what the model has written.
    assert (code, out, err) == (0, "It is \x1b[1mé?\n", "")
    assert canned.requests[-1][1]["messages"] == [
        {"role": "user", "content": "What\nis it?"}
    ]


async def test_the_input_follows_the_prompt(
    canned: CannedServer, run: Run, tmp_path: Path
) -> None:
    answer(canned, "yes\n", END)
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    options = ["--system", "be brief", "--seed", "7", "--stop", "a", "b"]
    code, out, _ = await run(
        "-p", "Fine?", "--image", f"{tmp_path}/a.gif", *options, stdin="a text"
    )
    assert (code, out) == (0, "yes\n")
    body = canned.requests[-1][1]
    assert body["seed"] == 7 and body["stop"] == ["a", "b"]
    system, question = body["messages"]
    assert system == {"role": "system", "content": "be brief"}
    assert question["content"][1] == {"type": "text", "text": "Fine?\n\na text"}


async def test_an_answer_without_its_end_is_told(
    canned: CannedServer, run: Run
) -> None:
    answer(canned, "It is", {"choices": [{"delta": {}, "finish_reason": "length"}]})
    code, out, err = await run("-p", "?")
    assert (code, out) == (0, "It is\n")
    assert err.startswith("trioserve: the answer has reached the limit of its tokens")
    assert "max_tokens" not in canned.requests[-1][1]
    answer(canned, "a a", {"choices": [{"delta": {}, "finish_reason": "repetition"}]})
    code, out, err = await run("-p", "?")
    assert err == "trioserve: the answer repeated itself, so it was ended\n"
    answer(canned, "It is")
    code, out, err = await run("-p", "?")
    assert (code, out) == (1, "It is\n")
    assert err == "trioserve: URL ended in the middle of the answer\n"


async def test_mistakes_are_one_sentence(canned: CannedServer, run: Run) -> None:
    code, out, err = await run()
    assert (code, out) == (2, "")
    assert err == "trioserve: chat: there is no question: standard input is empty\n"
    assert await run("-p", "?", "--image", "/none") == (
        2,
        "",
        "trioserve: --image: cannot read /none: No such file or directory\n",
    )
    canned.answers["/chat/completions"] = make_answer(
        b'{"error": {"message": "no\\n\\u001b[2J"}}', status=400
    )
    assert await run("-p", "?") == (1, "", "trioserve: URL answers 400: no \\x1b[2J\n")


async def test_a_reader_may_stop_early(tokenizer_folder: Path) -> None:
    async with open_fake_server(tokenizer_folder, step_seconds=0.005) as server:
        with trio.fail_after(60):
            process = await trio.lowlevel.open_process(
                [*FORK, "-m", "trioserve", "chat", "-p", "Hello"]
                + ["--url", server.url],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert process.stdout is not None and process.stderr is not None
            async with process.stdout, process.stderr:
                # The first token comes before the last.
                assert await process.stdout.receive_some(3)
                assert server.engine.statistics().num_streams == 1
                await process.stdout.aclose()
                assert await process.wait() == 0
                assert await process.stderr.receive_some() == b""
