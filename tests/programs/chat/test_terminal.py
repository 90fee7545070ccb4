"""Conversations in a real terminal, with servers and with an engine."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import signal
from typing import Any

import pytest
from terminal import Terminal, open_terminal
import trio
from warm_start import WarmClient

from trioserve.testing.models import save_tiny_model
from trioserve.testing.server import open_fake_server
from trioserve.testing.tokenizer import tiny_tokenizer

from .conftest import END, CannedServer, make_answer, make_events

CTRL_C, CTRL_D, CTRL_J = "\x03", "\x04", "\x0a"

Play = Callable[[Terminal], None]


@pytest.fixture(scope="module", autouse=True)
def chat_is_imported(helper: WarmClient) -> None:
    chat = "trioserve.programs.chat"
    helper.preload(f"{chat}.terminal", f"{chat}.remote", f"{chat}.embedded")


async def play(
    url: str, script: Play, folder: Path, *arguments: str, **variables: str
) -> Terminal:
    """Run a conversation, and what its user does, in a thread beside the server."""

    def run() -> Terminal:
        environment = {"XDG_STATE_HOME": str(folder), **variables}
        command = ["chat", "--url", url, *arguments]
        with open_terminal(command, environment=environment) as terminal:
            before = terminal.modes
            terminal.wait_prompt()
            script(terminal)
            # Nothing is left behind, whatever has ended the program.
            assert terminal.modes == before
            return terminal

    return await trio.to_thread.run_sync(run)


async def test_a_conversation(tokenizer_folder: Path, tmp_path: Path) -> None:
    def talk(terminal: Terminal) -> None:
        terminal.type("Hello\r")
        terminal.wait_text("lazy dog")
        # It would go on for a while, and what is typed meanwhile waits.
        terminal.type("/syst" + CTRL_C)
        terminal.wait(
            lambda terminal: terminal.lines[-1] == "" and "> /syst" in terminal.text
        )
        terminal.type("em be" + CTRL_J + "brief\r")
        terminal.wait_text("system: be\nbrief")
        terminal.wait_prompt()
        terminal.type("/set max_tokens 3\r")
        terminal.wait_text("max_tokens 3")
        terminal.wait_prompt()
        terminal.type("/regenerate\r")
        terminal.wait_text("limit of its tokens")
        terminal.wait_prompt()
        terminal.type("/continue\r")
        terminal.wait(lambda terminal: terminal.text.count("/continue goes on") == 2)
        terminal.wait_prompt()
        terminal.type(f"/save {tmp_path}/a.md\r")
        terminal.wait_text("saved as")
        terminal.wait_prompt()
        # The tabulator completes the command, and then the file.
        terminal.type(f"/lo\t {tmp_path}/a\t\r")
        terminal.wait_text("loaded 1 question with its answer")
        terminal.wait_prompt()
        terminal.type("unfinished" + CTRL_C)
        terminal.wait_text("Ctrl-D or /exit ends")
        terminal.wait_prompt()
        terminal.type("/model nobody\r")
        terminal.wait_text("has no model 'nobody'; it has fake, french")
        terminal.wait_prompt()
        terminal.type("/model french\r")
        terminal.wait_text("* french")
        terminal.wait_prompt()
        terminal.type("/regenerate\r")
        terminal.wait_text("Bon")
        terminal.wait_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0

    adapter = tmp_path / "french"
    adapter.mkdir()
    (adapter / "answer.txt").write_text("Bonjour le monde! ")
    async with open_fake_server(tokenizer_folder, step_seconds=0.02) as server:
        await server.engine.load_adapter("french", str(adapter))
        await play(server.url, talk, tmp_path)
        assert server.engine.statistics().num_streams == 0
        saved = (tmp_path / "a.md").read_text()
        assert saved.startswith(
            "## System\n\nbe\nbrief\n\n## User\n\nHello\n\n## Assistant\n\nThe"
        )
        assert len(saved) < 100
    history = tmp_path / "trioserve" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+Hello" in history.read_text()


async def test_a_server_that_dies_leaves_the_conversation(
    canned: CannedServer, tmp_path: Path
) -> None:
    def set_answer(answer: bytes) -> None:
        canned.answers["/chat/completions"] = answer

    def talk(terminal: Terminal) -> None:
        set_answer(make_answer(make_events("Half an \x1b]0;title\x07ans")))
        terminal.type("one\r")
        terminal.wait_text("ended in the middle of the answer")
        terminal.wait_prompt()
        set_answer(make_answer(b'{"error": "context length"}', status=400))
        terminal.type("two\r")
        terminal.wait_text("/clear begins a new one")
        terminal.wait_text("/regenerate asks again")
        terminal.wait_prompt()
        thought: Any = {"choices": [{"delta": {"reasoning_content": "Hm."}}]}
        set_answer(make_answer(make_events(thought, "**Whole** answer", END)))
        terminal.type("/regenerate\r")
        terminal.wait_text("Whole answer")
        terminal.wait_prompt()
        terminal.type("/exit\r")
        assert terminal.wait_end() == 0

    terminal = await play(canned.url, talk, tmp_path, "--no-history")
    assert not (tmp_path / "trioserve").exists()
    # The codes of the reasoning, and of what is bold; none of the model's.
    assert b"\x1b[2;3mHm.\x1b[0m" in terminal.raw
    assert b"\x1b[1mWhole\x1b[0m" in terminal.raw
    assert b"\x1b]0;title" not in terminal.raw and "␛]0;title␇" in terminal.text
    messages = canned.requests[-1][1]["messages"]
    assert [each["content"] for each in messages] == [
        "one",
        "Half an \x1b]0;title\x07ans",
        "two",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_all(
    tokenizer_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    def talk(terminal: Terminal) -> None:
        if number == signal.SIGTERM:
            terminal.type("Hello\r")
            terminal.wait_text("lazy dog")
        os.kill(terminal.process.pid, number)
        assert terminal.wait_end() == 128 + number

    async with open_fake_server(tokenizer_folder, step_seconds=0.02) as server:
        with trio.fail_after(60):
            await play(server.url, talk, tmp_path)
            while server.engine.statistics().num_streams:
                await trio.sleep(0.01)


async def test_a_terminal_without_commands_gets_none(
    canned: CannedServer, tmp_path: Path
) -> None:
    canned.answers["/chat/completions"] = make_answer(make_events("**Yes**", END))

    def talk(terminal: Terminal) -> None:
        terminal.type("one\r")
        terminal.wait_text("**Yes**")
        terminal.wait_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0

    terminal = await play(canned.url, talk, tmp_path, TERM="dumb")
    # prompt_toolkit shows the cursor once.
    assert b"\x1b[" not in terminal.raw.partition(b"> one")[2].replace(
        b"\x1b[?2004", b""
    )


def test_an_engine_answers(tmp_path: Path) -> None:
    """The model, its process and the conversation begin and end together."""
    folder = save_tiny_model("llama", tiny_tokenizer(tmp_path), vocab_size=512)
    options = ["--max-tokens", "5", "--num-threads", "1"]
    with open_terminal(["chat", str(folder), *options], size=(100, 24)) as terminal:
        before = terminal.modes
        terminal.wait_text("loading the model")
        # Typed before there is a prompt.
        terminal.type("Hello\r")
        terminal.wait_text("limit of its tokens")
        terminal.wait_prompt()
        assert "loading" not in terminal.text
        terminal.type(f"/image {folder}/config.json\r")
        terminal.wait_text("takes no pictures")
        terminal.wait_prompt()
        terminal.type("Hello " * 500 + "\r")
        terminal.wait_text("too long for the model")
        terminal.wait_prompt()
        terminal.type("/exit\r")
        assert terminal.wait_end() == 0
        assert terminal.modes == before


def test_an_interrupt_while_the_model_is_loaded(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tiny_tokenizer(tmp_path), vocab_size=512)
    with open_terminal(["chat", str(folder)]) as terminal:
        before = terminal.modes
        terminal.wait_text("loading the model")
        terminal.type(CTRL_C)
        assert terminal.wait_end() == 130
        assert terminal.text == "" and terminal.modes == before
