"""A conversation goes to a file, and comes back."""

from __future__ import annotations

import json
import os
from pathlib import Path
import tempfile
from typing import Any

from hypothesis import given, strategies as st
import pytest

from trioserve.programs.chat.conversation import Conversation
from trioserve.programs.chat.restoring import NotRestored, restore
from trioserve.programs.chat.saving import save
from trioserve.programs.chat.slash import SlashCommands

from .conftest import PNG, open_commands, talk


def test_a_conversation_is_saved(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    assert commands.run(f"/save {tmp_path}/a.md").text == "there is nothing to save yet"
    commands.run("/system be brief")
    talk(conversation, "a?", "a. \ud800\n")
    assert not commands.run(f"/save {tmp_path}/a.md").is_error
    assert (tmp_path / "a.md").read_text() == (
        "## System\n\nbe brief\n\n## User\n\na?\n\n## Assistant\n\na. ?\n"
    )
    talk(conversation, "b?", "b.")
    # This conversation's own file may be replaced, and no other one.
    assert not commands.run(f"/save {tmp_path}/a.md").is_error
    assert "b?" in (tmp_path / "a.md").read_text()
    other = open_commands(conversation)
    assert "exists already" in other.run(f"/save {tmp_path}/a.md").text
    assert "cannot write" in commands.run(f"/save {tmp_path}/no/a.md").text
    assert commands.run("/save").is_error
    conversation.undo()
    commands.run("/regenerate")
    conversation.answer("é")
    commands.run(f"/save {tmp_path}/a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved == {"messages": conversation.write()}


def test_a_conversation_with_a_picture_is_loaded(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    commands.run("/system be brief")
    commands.run(f"/image {tmp_path}/a.png")
    talk(conversation, "what?", "a cat\n")
    talk(conversation, "sure?", "yes")
    commands.run(f"/save {tmp_path}/a.json")
    other = Conversation("be long")
    talk(other, "old", "old")
    loaded = open_commands(other).run(f"/load '{tmp_path}/a.json'")
    assert loaded.text == (
        "loaded 2 questions with their answers\nthe last question: sure?"
    )
    assert other.write() == conversation.write()
    blind = open_commands(other, takes_images=False).run(f"/load {tmp_path}/a.json")
    assert blind.is_error and blind.text.endswith("has pictures, and tiny takes none")
    # Markdown has the names of pictures alone.
    commands.run(f"/save {tmp_path}/a.md")
    loaded = open_commands(other).run(f"/load {tmp_path}/a.md")
    assert "pictures are left out" in loaded.text and not loaded.is_error
    assert other.system == "be brief"
    assert [turn.question.text for turn in other.turns] == ["what?", "sure?"]


def test_a_loaded_conversation_goes_on_in_its_file(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    path = tmp_path / "a.md"
    path.write_text("## User\n\na?\n\n## Assistant\n\na.\n")
    assert not commands.run(f"/load {path}").is_error
    assert conversation.system == ""
    talk(conversation, "b?", "b.")
    assert not commands.run(f"/save {path}").is_error
    assert path.read_text().count("## User") == 2


def test_a_last_question_without_an_answer_can_be_asked(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    messages = [{"role": "user", "content": [{"type": "text", "text": "a?"}]}]
    # A bare list is what a program keeps.
    path.write_text(json.dumps(messages))
    assert "/regenerate asks it" in commands.run(f"/load {path}").text
    assert conversation.write() == []
    assert commands.run("/regenerate").next == "answer"
    assert conversation.write() == [{"role": "user", "content": "a?"}]


LINES = st.sampled_from(
    ["## User", "## Assistant", "\\## System", "(picture: a.png)", "text", "", "\r"]
)
TEXTS = st.lists(LINES | st.text(), min_size=1).map("\n".join)


@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1),
    TEXTS,
    st.sampled_from(["md", "json"]),
)
def test_each_text_comes_back(
    turns: list[tuple[str, str]], system: str, ending: str
) -> None:
    conversation = Conversation(system.strip())
    for question, answer in turns:
        talk(conversation, question.strip(), answer.strip())
    if not conversation.turns:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.{ending}"
        save(conversation, path, may_replace=False)
        restored = restore(path)
    assert restored.system == conversation.system
    assert list(restored.turns) == conversation.turns


QUESTION: dict[str, Any] = {"role": "user", "content": "a?"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "it is not JSON: Expecting"),
        ("a.json", "3", "it has no list of messages"),
        ("a.json", '{"messages": {}}', "it has no list of messages"),
        ("a.json", "[]", "it has no question"),
        ("a.json", [QUESTION, QUESTION], "message 2 must have the role 'assistant'"),
        ("a.json", [3], "message 1 must have the role 'user'"),
        ("a.json", [{"role": "system", "content": "s"}, 3], "message 2 must have"),
        ("a.json", [{"role": "tool", "content": "a"}], "message 1 must have the role"),
        ("a.json", [{"role": "user"}], "message 1 has more than texts and pictures"),
        (
            "a.json",
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "message 1 has more than texts and pictures",
        ),
        (
            "a.json",
            [QUESTION, {"role": "assistant", "content": ""}],
            "message 2 must be an answer in text",
        ),
        ("a.md", "# Notes\n\n## User\n\na?\n", "it does not begin with ## System or"),
        ("a.md", "", "it does not begin with ## System or ## User"),
        ("a.md", "(picture: a)\n", "it has no question"),
        ("a.md", "\xff", "it is not text in UTF-8"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused(
    conversation: Conversation,
    commands: SlashCommands,
    tmp_path: Path,
    name: str,
    content: Any,
    reason: str,
) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    talk(conversation, "kept?", "yes")
    outcome = commands.run(f"/load {tmp_path / name}")
    assert outcome.is_error
    assert outcome.text.startswith(f"cannot load {tmp_path / name}: {reason}")
    assert [turn.answer for turn in conversation.turns] == ["yes"]


def test_what_cannot_be_read_is_refused(
    commands: SlashCommands, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "it is not a file"),
        (tmp_path / "no", "No such file or directory"),
        ("/dev/zero", "it is not a file"),
    ):
        text = commands.run(f"/load {path}").text
        assert text == f"cannot load {path}: {reason}"
    assert commands.run("/load").text == "name a file: /load FILE"
    assert commands.run("/load a\0b").is_error
    large = tmp_path / "large.md"
    large.touch()
    os.truncate(large, 2**28 + 1)
    with pytest.raises(NotRestored, match="more than 256 MiB"):
        restore(str(large))
