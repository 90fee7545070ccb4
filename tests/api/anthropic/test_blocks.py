"""The content blocks of Anthropic's API, from deltas that are cut in any way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trioserve.api.anthropic.answers import BlockEvent
from trioserve.api.anthropic.blocks import BlockWriter, ContentCollector
from trioserve.types.output import TextDelta, ToolCallDelta

END = TextDelta(finish_reason="stop")


def call(index: int, arguments: str = "", *, begins: bool = False) -> TextDelta:
    names = {"id": f"call_{index}", "name": "look"} if begins else {}
    piece = ToolCallDelta(index=index, arguments=arguments, **names)
    return TextDelta(tool_calls=(piece,))


def write(*deltas: TextDelta, shows_thinking: bool = True) -> list[Any]:
    """Return the events of an answer, as a client decodes them."""
    writer = BlockWriter("sig", shows_thinking=shows_thinking)
    return to_json([event for delta in deltas for event in writer.push(delta)])


def collect(*deltas: TextDelta) -> list[Any]:
    writer, content = BlockWriter("sig", shows_thinking=True), ContentCollector()
    for delta in deltas:
        content.add(writer.push(delta))
    return to_json(content.build())


def to_json(structs: list[BlockEvent] | tuple[Any, ...]) -> list[Any]:
    decoded: list[Any] = msgspec.json.decode(msgspec.json.encode(structs))
    return decoded


def test_a_text_is_one_block() -> None:
    assert write(TextDelta(text="Hi "), TextDelta(text="you"), END) == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            }
            for text in ("Hi ", "you")
        ),
        {"type": "content_block_stop", "index": 0},
    ]


def test_the_signature_comes_behind_the_reasoning() -> None:
    events = write(TextDelta(reasoning="Hm."), TextDelta(text="Yes."), END)
    assert [event.get("delta", {}).get("type") for event in events[:4]] == [
        *(None, "thinking_delta", "signature_delta", None)
    ]
    assert events[0]["content_block"] == {
        "type": "thinking",
        "thinking": "",
        "signature": "",
    }
    assert [event["index"] for event in events] == [0, 0, 0, 0, 1, 1, 1]


def test_reasoning_that_is_not_shown_leaves_its_signature() -> None:
    events = write(TextDelta(reasoning="Hm."), END, shows_thinking=False)
    assert [event["type"] for event in events] == [
        *("content_block_start", "content_block_delta", "content_block_stop")
    ]
    assert events[1]["delta"] == {"type": "signature_delta", "signature": "sig"}


def test_each_call_is_a_block() -> None:
    deltas = [
        TextDelta(text="I look.\n"),
        call(0, begins=True),
        call(0, '{"at": '),
        call(0, '"sea"}'),
        TextDelta(text="\n"),
        call(1, "{}", begins=True),
        TextDelta(text="\n"),
        END,
    ]
    assert collect(*deltas) == [
        {"type": "text", "text": "I look.\n"},
        {"type": "tool_use", "id": "call_0", "name": "look", "input": {"at": "sea"}},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {}},
    ]
    starts = [e for e in write(*deltas) if e["type"] == "content_block_start"]
    assert starts[1]["content_block"] == {
        "type": "tool_use",
        "id": "call_0",
        "name": "look",
        "input": {},
    }


def test_text_between_calls_keeps_its_space() -> None:
    deltas = [
        call(0, "{}", begins=True),
        TextDelta(text="\n"),
        TextDelta(text="So."),
        END,
    ]
    assert collect(*deltas)[1] == {"type": "text", "text": "\nSo."}


def test_an_answer_without_text_has_an_empty_block() -> None:
    assert collect(END) == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("arguments", ["", '{"at": "s', "[1]", "5"])
def test_a_call_that_did_not_end_has_no_input(arguments: str) -> None:
    [block] = collect(call(0, arguments, begins=True), END)
    assert block["input"] == {}


def test_one_delta_may_have_everything() -> None:
    whole = TextDelta(
        reasoning="Hm.",
        text="Yes.",
        tool_calls=call(0, "{}", begins=True).tool_calls,
        finish_reason="stop",
    )
    assert [block["type"] for block in collect(whole)] == [
        "thinking",
        "text",
        "tool_use",
    ]


def test_the_rest_of_a_call_comes_before_the_text_behind_it() -> None:
    """A slow reader gets the deltas of several steps as one."""
    rest = TextDelta(text="Done.", tool_calls=call(0, "1}").tool_calls)
    begin = call(0, '{"a": ', begins=True)
    used, text = collect(begin, rest, END)
    assert used["input"] == {"a": 1}
    assert text["text"] == "Done."


def test_a_call_that_is_cut_off_keeps_its_whole_members() -> None:
    cut = TextDelta(finish_reason="length")
    [block] = collect(call(0, '{"a": [1, 2], ', begins=True), call(0, '"b": "x'), cut)
    assert block["input"] == {"a": [1, 2]}
