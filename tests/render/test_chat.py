"""Messages become text, or are refused with the name of their field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trioserve.config import RenderConfig
from trioserve.errors import InvalidParameter, NotSupported, RequestError
from trioserve.render import (
    TURN_CHARACTERS,
    ChatOptions,
    TokenizeOptions,
    count_characters,
)
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Subject

USER = {"role": "user", "content": "Hi"}


def say(*content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def call(*calls: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": calls}


class TextPart(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class StructMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[TextPart] | None = None


@dataclass(frozen=True, kw_only=True)
class DataclassMessage:
    role: str
    content: str


async def test_messages_become_the_templates_text(byte_level: Subject) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    prompt = await byte_level.renderer.render_chat(
        messages, options=TokenizeOptions(add_special_tokens=False, cache_salt="s")
    )
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.token_ids == tuple(byte_level.encode(prompt.text))
    assert prompt.cache_salt == "s"


async def test_structs_dataclasses_and_mappings_say_the_same(
    byte_level: Subject,
) -> None:
    for message in (
        USER,
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        StructMessage("user", "Hi"),
        StructMessage("user", [TextPart("Hi")]),
        DataclassMessage(role="user", content="Hi"),
        {"role": "user", "content": [TextPart("Hi")], "name": "Ann"},
    ):
        expected = await byte_level.renderer.render_chat([USER])
        assert await byte_level.renderer.render_chat([message]) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "developer", "content": "x"}, "system\nx"),
        ({"role": "tool", "content": "42", "tool_call_id": "c"}, "tool\n42"),
        ({"role": "assistant", "content": None}, "assistant\n"),
        ({"role": "assistant"}, "assistant\n"),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ],
            },
            "user\na\nb",
        ),
    ],
)
async def test_roles_and_contents_are_brought_into_the_templates_form(
    byte_level: Subject, message: Mapping[str, object], expected: str
) -> None:
    prompt = await byte_level.renderer.render_chat(
        [message], ChatOptions(add_generation_prompt=False)
    )
    assert prompt.text == f"<|im_start|>{expected}<|im_end|>\n"


async def test_the_final_message_can_be_continued(byte_level: Subject) -> None:
    prompt = await byte_level.renderer.render_chat(
        [USER, {"role": "assistant", "content": "Hello"}],
        ChatOptions(add_generation_prompt=False, continue_final_message=True),
    )
    assert prompt.text is not None
    assert prompt.text.endswith("<|im_start|>assistant\nHello")


async def test_wrong_messages_are_refused_by_name(byte_level: Subject) -> None:
    for messages, param in (
        ([], ""),
        (["Hi"], "[0]"),
        ([USER, 7], "[1]"),
        ([{"content": "Hi"}], "[0].role"),
        ([{**USER, "role": ""}], "[0].role"),
        ([{**USER, "role": ["user"]}], "[0].role"),
        ([{**USER, "content": 7}], "[0].content"),
        ([USER, say({"type": "input_audio"})], "[1].content[0].type"),
        ([say({"type": "image_url", "image_url": "x"})], "[0].content[0].image_url"),
        ([say({"type": "prompt_embeds"})], "[0].content[0].prompt_embeds"),
        (
            [say({"type": "prompt_embeds", "prompt_embeds": "x"})],
            "[0].content[0].prompt_embeds",
        ),
        ([say({"type": "text", "text": 7})], "[0].content[0].text"),
        ([say("Hi")], "[0].content[0]"),
        ([{**USER, "content": "\ud83d"}], ""),
        ([call({"id": "c"})], "[0].tool_calls[0].function"),
        ([{**USER, "tool_calls": [{"function": {"name": "f"}}]}], "[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": {"id": "c"}}], "[0].tool_calls"),
        ([call({"function": {"name": 7}})], "[0].tool_calls[0].function.name"),
    ):
        with pytest.raises(RequestError) as caught:
            await byte_level.renderer.render_chat(messages)
        assert caught.value.param == f"messages{param}", messages
        # An unknown part, and one that this model or server does not take.
        is_part = param.endswith((".type", "image_url")) or "'x'" in str(messages)
        assert isinstance(caught.value, NotSupported) == is_part, (messages, param)


async def test_a_message_is_either_continued_or_answered(byte_level: Subject) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await byte_level.renderer.render_chat(
            [USER], ChatOptions(continue_final_message=True)
        )
    assert caught.value.param == "continue_final_message"


async def test_how_the_template_is_called_is_not_the_clients_to_set(
    byte_level: Subject,
) -> None:
    for name in (
        "chat_template",
        "tokenize",
        "messages",
        "conversations",
        "tools",
        "self",
    ):
        with pytest.raises(InvalidParameter, match=name) as caught:
            await byte_level.renderer.render_chat(
                [USER], ChatOptions(variables={name: "x"})
            )
        assert caught.value.param == "chat_template_kwargs", name


async def test_without_a_template_messages_are_refused(sentencepiece: Subject) -> None:
    with pytest.raises(InvalidParameter, match="no chat template") as caught:
        await sentencepiece.renderer.render_chat([USER])
    assert caught.value.param == "messages"


async def test_template_variables_reach_a_given_template(
    sentencepiece_folder: Path,
) -> None:
    renderer = load_renderer(
        sentencepiece_folder,
        RenderConfig(),
        info=make_info(64),
        chat_template="{{ mood }}: {{ messages[-1].content }}",
    )
    prompt = await renderer.render_chat(
        [USER], ChatOptions(variables={"mood": "happy"})
    )
    assert prompt.text == "happy: Hi"


@dataclass(frozen=True)
class Turn:
    role: str
    content: object


def test_a_conversation_is_measured_before_it_is_checked() -> None:
    for content, num_characters in (
        ("Hello", 5),
        (None, 0),
        ([{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}], 3),
        ([{"type": "image_url", "image_url": {"url": "data:" + "x" * 1000}}], 0),
        (7, 0),
        ([7, {"text": 7}], 0),
    ):
        for message in ({"role": "user", "content": content}, Turn("user", content)):
            assert count_characters([message]) == TURN_CHARACTERS + num_characters, content  # type: ignore[list-item]


def test_messages_that_are_made_as_they_are_read_are_not_measured() -> None:
    class PooledBatch(Sequence[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: object) -> Any:
            raise AssertionError("it is a worker's to read them")

    assert count_characters(PooledBatch()) == 0
    assert count_characters("no messages") == 0  # type: ignore[arg-type]
