"""A conversation keeps its answers, and its commands change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trioserve.programs.chat.config import SamplingConfig
from trioserve.programs.chat.conversation import Conversation
from trioserve.programs.chat.slash import SlashCommands

from .conftest import PNG, open_commands, talk

Run = Callable[[str], str]


def list_texts(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.write()]


def test_turns_are_messages(conversation: Conversation) -> None:
    conversation.system = "be brief"
    talk(conversation, "a?", "a.")
    conversation.ask("b?")
    assert conversation.write() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "a."},
        {"role": "user", "content": "b?"},
    ]


def test_a_question_without_an_answer_can_be_asked_again(
    conversation: Conversation, commands: SlashCommands
) -> None:
    talk(conversation, "a?", "a.")
    talk(conversation, "b?", " \n")
    assert list_texts(conversation) == ["a?", "a."]
    assert commands.run("/regenerate").next == "answer"
    assert list_texts(conversation) == ["a?", "a.", "b?"]
    conversation.answer("b.")
    # Another question forgets it.
    talk(conversation, "c?", "")
    talk(conversation, "d?", "d.")
    assert commands.run("/retry").next == "answer"
    assert list_texts(conversation) == ["a?", "a.", "b?", "b.", "d?"]


def test_regenerate_replaces_an_answer(
    conversation: Conversation, commands: SlashCommands
) -> None:
    assert commands.run("/regenerate").is_error
    talk(conversation, "a?", "wrong")
    commands.run("/regenerate")
    conversation.answer("right")
    assert list_texts(conversation) == ["a?", "right"]


def test_an_answer_goes_on(conversation: Conversation, commands: SlashCommands) -> None:
    assert commands.run("/continue").is_error
    talk(conversation, "a?", "one, ")
    assert commands.run("/continue").next == "answer"
    assert conversation.write()[-1] == {"role": "assistant", "content": "one, "}
    conversation.answer("two, ")
    commands.run("/continue")
    # It breaks off at once.
    conversation.answer("")
    assert list_texts(conversation) == ["a?", "one, two, "]
    # The last question has no answer that could go on.
    talk(conversation, "b?", "")
    assert commands.run("/continue").is_error
    assert list_texts(conversation) == ["a?", "one, two, "]


def test_undo_and_clear(conversation: Conversation, commands: SlashCommands) -> None:
    assert commands.run("/undo").is_error
    commands.run("/system be brief")
    for each in "abc":
        talk(conversation, each, each)
    talk(conversation, "d", "")
    assert commands.run("/undo").text == "forgotten: d"
    assert commands.run("/undo").text == "forgotten: c"
    assert list_texts(conversation) == ["be brief", "a", "a", "b", "b"]
    commands.run("/clear")
    assert list_texts(conversation) == ["be brief"]
    assert commands.run("/regenerate").is_error
    assert commands.run("/system none").text == "no system message"
    assert list_texts(conversation) == []


def test_a_picture_belongs_to_the_next_question(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    (tmp_path / "a b.png").write_bytes(PNG)
    assert not commands.run(f"/image '{tmp_path}/a b.png'").is_error
    assert commands.run("/image").text == "pictures: a b.png"
    talk(conversation, "what?", "a cat")
    talk(conversation, "sure?", "yes")
    image, text = conversation.write()[0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "what?"}
    assert conversation.write()[2]["content"] == "sure?"
    commands.run("/undo")
    commands.run("/regenerate")
    assert conversation.write()[0]["content"][0] == image


def test_wrong_pictures_are_refused(
    conversation: Conversation, commands: SlashCommands, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    assert commands.run(f"/image {path}").text.endswith("No such file or directory")
    path.write_bytes(b"text")
    assert "not a PNG, JPEG" in commands.run(f"/image {path}").text
    assert commands.run("/image a\0b").is_error
    blind = open_commands(conversation, takes_images=False)
    assert blind.run(f"/image {path}").text == "tiny takes no pictures"
    assert conversation.images == []


def test_sampling_is_set(commands: SlashCommands) -> None:
    assert commands.run("/set").text == "sampling as the model has it"
    assert commands.run("/set temperature 0.5").text == "temperature 0.5"
    commands.run("/set max-tokens 7")
    commands.run("/set stop 'a b' c")
    assert commands.sampling == SamplingConfig(
        temperature=0.5, max_tokens=7, stop=("a b", "c")
    )
    commands.run("/set temperature none")
    commands.run("/set stop none")
    assert commands.sampling == SamplingConfig(max_tokens=7)
    for wrong in ("temperature x", "temperature -1", "seed", "color red", "stop 'a"):
        outcome = commands.run(f"/set {wrong}")
        assert outcome.is_error and not outcome.text.startswith("-")
    assert commands.sampling == SamplingConfig(max_tokens=7)


def test_other_commands(commands: SlashCommands) -> None:
    assert commands.run("/exit").next == commands.run("/quit").next == "exit"
    assert commands.run("/nothing").text == (
        "there is no /nothing; /help lists the commands"
    )
    assert commands.run("/clear all").is_error
    text = commands.run("/help").text
    for name in commands.names:
        assert name in text or name in ("/retry", "/quit")
    assert max(map(len, text.splitlines())) < 80
