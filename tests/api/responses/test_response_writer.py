"""From deltas to the items and the events of a response."""

from __future__ import annotations

from itertools import count
import json
from typing import Any

from openai.types.responses import ResponseStreamEvent
import pydantic
import pytest

from trioserve.api.responses.answers import (
    ReasoningOptions,
    ResponseObject,
    TextOptions,
)
from trioserve.api.responses.events import encode_event
from trioserve.api.responses.writer import ResponseWriter
from trioserve.api.shared.logprobs import TokenTexts
from trioserve.errors import EngineDied
from trioserve.http.record.usage import Usage
from trioserve.http.wire.error_body import encode
from trioserve.types.output import TextDelta, TokenLogprobs, ToolCallDelta

EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
USAGE = Usage.of(num_prompt_tokens=3, num_output_tokens=4, num_cached_tokens=1)
LOGPROBS = (TokenLogprobs(token_id=65, logprob=-0.5, rank=1, top=((66, -0.7),)),)


def make_writer(*, background: bool = False) -> ResponseWriter:
    response = ResponseObject(
        id="resp_1",
        created_at=1000,
        status="queued" if background else "in_progress",
        background=background,
        instructions=None,
        max_output_tokens=None,
        max_tool_calls=None,
        metadata={},
        model="fake",
        parallel_tool_calls=True,
        previous_response_id=None,
        prompt_cache_key=None,
        reasoning=ReasoningOptions(),
        safety_identifier=None,
        store=True,
        temperature=1.0,
        text=TextOptions(format={"type": "text"}),
        tool_choice="auto",
        tools=(),
        top_logprobs=0,
        top_p=1.0,
        truncation="disabled",
        user=None,
    )
    numbers = count()
    return ResponseWriter(
        response,
        TokenTexts(lambda token_id: bytes([token_id])),
        make_id=lambda: str(next(numbers)),
        tell_time=lambda: 1001,
    )


def write(*deltas: TextDelta, **options: Any) -> list[dict[str, Any]]:
    """Return all events, each checked against the types of OpenAI's client."""
    writer = make_writer(**options)
    events = [*writer.begin()]
    for delta in deltas:
        events += writer.push(delta)
    events += writer.finish(USAGE)
    read = [json.loads(encode_event(e).partition(b"data: ")[2]) for e in events]
    for event in read:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    assert read[-1]["response"] == json.loads(encode(writer.response))
    return read


def call(index: int, arguments: str, *, name: str = "") -> TextDelta:
    piece = ToolCallDelta(
        index=index, id=name and f"call_{index}", name=name, arguments=arguments
    )
    return TextDelta(tool_calls=(piece,))


def list_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the output, after a check that the events of its items agree with it."""
    output: list[dict[str, Any]] = events[-1]["response"]["output"]
    done = [e for e in events if e["type"] == "response.output_item.done"]
    added = [e for e in events if e["type"] == "response.output_item.added"]
    assert [e["item"] for e in done] == output
    for group in (added, done):
        assert [e["output_index"] for e in group] == list(range(len(output)))
    assert [e["item"]["id"] for e in added] == [each["id"] for each in output]
    return output


END = TextDelta(finish_reason="stop")


def test_reasoning_text_and_calls_are_items_in_the_order_in_which_they_come() -> None:
    events = write(
        TextDelta(reasoning="Hm"),
        TextDelta(reasoning=".", text="I "),
        TextDelta(text="look."),
        call(0, "", name="look"),
        call(0, '{"at":'),
        call(0, " 1}"),
        call(1, "{}", name="wait"),
        TextDelta(text="Done."),
        END,
    )
    reasoning, first, look, wait, second = list_items(events)
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert first["content"][0]["text"] == "I look."
    assert (look["call_id"], look["name"]) == ("call_0", "look")
    assert look["arguments"] == '{"at": 1}'
    assert (wait["call_id"], wait["name"], wait["arguments"]) == (
        "call_1",
        "wait",
        "{}",
    )
    assert second["content"][0]["text"] == "Done."
    assert {e["status"] for e in events[-1]["response"]["output"]} == {"completed"}
    pieces = [
        (e["output_index"], e["delta"])
        for e in events
        if e["type"] == "response.function_call_arguments.delta"
    ]
    assert pieces == [(2, '{"at":'), (2, " 1}"), (3, "{}")]


def test_a_delta_of_several_calls_opens_an_item_for_each() -> None:
    pieces = (*call(0, "{}", name="a").tool_calls, *call(1, "{}", name="b").tool_calls)
    items = list_items(write(TextDelta(tool_calls=pieces), END))
    assert [item["name"] for item in items] == ["a", "b"]


def test_the_rest_of_a_call_comes_before_the_text_behind_it() -> None:
    """A slow reader gets the deltas of several steps as one."""
    rest = TextDelta(text="Done.", tool_calls=call(0, "1}").tool_calls)
    used, text = list_items(write(call(0, '{"a": ', name="a"), rest, END))
    assert used["arguments"] == '{"a": 1}'
    assert text["content"][0]["text"] == "Done."


def test_an_answer_without_tokens_is_an_empty_message() -> None:
    [message] = list_items(write(END))
    assert message["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]


def test_only_the_last_item_of_an_answer_that_is_cut_off_is_incomplete() -> None:
    events = write(TextDelta(text="a"), call(0, '{"a', name="b"), LENGTH)
    assert [e["status"] for e in list_items(events)] == ["completed", "incomplete"]
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None


@pytest.mark.parametrize("arguments", ['{"at": 1', '{"at": }', '{} {"a": 1}', "{"])
def test_a_call_that_the_model_breaks_off_is_incomplete(arguments: str) -> None:
    broken = (call(0, "", name="a"), call(0, arguments), TextDelta(text="Oh."))
    events = write(*broken, call(1, '{"b": []}', name="b"), call(2, "", name="c"), END)
    states = [item["status"] for item in list_items(events)]
    assert states == ["incomplete", "completed", "completed", "completed"]
    assert events[-1]["response"]["status"] == "completed"


def test_an_end_that_is_not_stored_says_so() -> None:
    writer = make_writer()
    events = writer.forgo_store(writer.finish(USAGE))
    assert writer.response.store is False
    assert events[-1].response == writer.response  # type: ignore[attr-defined]
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))


def test_a_response_that_is_abandoned_has_failed_without_output() -> None:
    writer = make_writer()
    writer.push(TextDelta(text="a"))
    writer.finish(USAGE)
    last = writer.abandon(EngineDied(), 7)
    assert last.sequence_number == 7
    response = writer.response
    assert (response.status, response.output) == ("failed", ())
    assert response.completed_at is None
    assert response.error is not None


LENGTH = TextDelta(finish_reason="length")


@pytest.mark.parametrize(
    ("deltas", "num_entries"),
    [
        ((TextDelta(text="A", logprobs=LOGPROBS),), 1),
        # The first bytes of a character have no text.
        ((TextDelta(logprobs=LOGPROBS), TextDelta(text="A", logprobs=LOGPROBS)), 2),
        ((TextDelta(text="A", logprobs=LOGPROBS), TextDelta(logprobs=LOGPROBS)), 2),
        # Tags and reasoning have no log probabilities in this API.
        (
            (
                TextDelta(logprobs=LOGPROBS),
                TextDelta(reasoning="b", logprobs=LOGPROBS),
                TextDelta(text="A", logprobs=LOGPROBS),
            ),
            1,
        ),
    ],
)
def test_log_probabilities_belong_to_the_text(deltas: Any, num_entries: int) -> None:
    events = write(*deltas, END)
    part = list_items(events)[-1]["content"][0]
    entry = {
        "token": "A",
        "logprob": -0.5,
        "bytes": [65],
        "top_logprobs": [{"token": "B", "logprob": -0.7, "bytes": [66]}],
    }
    assert part["logprobs"] == [entry] * num_entries
    streamed = [
        len(e["logprobs"]) for e in events if e["type"] == "response.output_text.delta"
    ]
    assert sum(streamed) == num_entries


def test_a_queued_response_is_in_progress_from_its_first_token_on() -> None:
    events = write(TextDelta(text="a"), END, background=True)
    states = [(e["type"], e["response"]["status"]) for e in events if "response" in e]
    assert states == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
        ("response.completed", "completed"),
    ]


def test_a_failure_and_a_cancellation_end_the_open_item() -> None:
    for end, status in (
        (lambda w: w.fail(EngineDied()), "failed"),
        (lambda w: w.cancel(), "cancelled"),
    ):
        writer = make_writer()
        writer.push(TextDelta(text="a"))
        *_, last = end(writer)
        assert last.response.status == status
        [item] = last.response.output
        assert item.status == "incomplete"
        assert (last.response.error is not None) == (status == "failed")


def test_usage_has_the_names_of_this_api() -> None:
    usage = write(END)[-1]["response"]["usage"]
    assert usage == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
