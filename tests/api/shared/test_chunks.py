"""The events of a stream in all forms, as a client reads them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, strategies as st
import msgspec
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletionChunk
import pytest

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.chat.events import ChatChunks, ChatEvents, ReasoningChunks
from trioserve.api.completions.answers import CompletionLogprobs
from trioserve.api.completions.body import COMPLETION_BODY
from trioserve.api.completions.events import CompletionChunks, CompletionEvents
from trioserve.api.shared.chunks import DONE, StreamHeader
from trioserve.api.shared.logprobs import ChatLogprobs, TokenLogprob
from trioserve.errors import EngineDied
from trioserve.http.record.usage import Usage
from trioserve.types.output import TextDelta

USAGE = Usage.of(num_prompt_tokens=5, num_output_tokens=2, num_cached_tokens=0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def make_header(**fields: Any) -> StreamHeader:
    values: dict[str, Any] = {
        "id": "x-1",
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp",
    }
    return StreamHeader(**(values | fields))


def read(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event.removeprefix(b"data: "))


def read_chat(event: bytes) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate(read(event), strict=True)


@given(text=TEXTS)
def test_a_chats_text_comes_back_as_it_was(text: str) -> None:
    chunk = read_chat(ChatChunks(make_header(), 3).text(text))
    assert chunk.choices[0].index == 3
    assert chunk.choices[0].delta.content == text


@given(text=TEXTS)
def test_a_completions_text_comes_back_as_it_was(text: str) -> None:
    chunk = read(CompletionChunks(make_header(), 3).text(text))
    assert chunk["choices"][0]["index"] == 3
    assert chunk["choices"][0]["text"] == text


@given(name=TEXTS)
def test_no_name_of_a_model_is_taken_for_the_text(name: str) -> None:
    for marked in (name, f'"the text"{name}', "the text"):
        header = make_header(model=marked, id=marked)
        assert read_chat(ChatChunks(header).text("hi")).model == marked
        assert read(CompletionChunks(header).text("hi"))["model"] == marked


DELTA: dict[str, Any] = {"index": 1, "logprobs": None, "finish_reason": None}


@pytest.mark.parametrize(
    ("event", "kind", "choice"),
    [
        (
            *(ChatChunks(make_header(), 1).start(), "chat.completion.chunk"),
            DELTA | {"delta": {"role": "assistant", "content": ""}},
        ),
        (
            *(ChatChunks(make_header(), 1).text("a"), "chat.completion.chunk"),
            DELTA | {"delta": {"content": "a"}},
        ),
        (
            *(CompletionChunks(make_header(), 1).text("a"), "text_completion"),
            DELTA | {"text": "a"},
        ),
    ],
)
def test_an_event_has_openais_fields(
    event: bytes, kind: str, choice: dict[str, Any]
) -> None:
    assert read(event) == {
        "id": "x-1",
        "object": kind,
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [choice],
    }


@given(text=TEXTS)
def test_reasoning_comes_back_as_it_was_and_without_content(text: str) -> None:
    chunks = ReasoningChunks(make_header(), 3)
    for event in (chunks.text(text), chunks.text(text, finish_reason="length")):
        (choice,) = read(event)["choices"]
        assert (choice["index"], choice["delta"]) == (3, {"reasoning": text})


@pytest.mark.parametrize("chunks_type", [ChatChunks, ReasoningChunks, CompletionChunks])
def test_an_event_says_the_same_however_it_is_written(
    chunks_type: type[ChatChunks] | type[CompletionChunks],
) -> None:
    chunks = chunks_type(make_header())
    whole = read(chunks.text("a", token_ids=(1, 2)))
    assert whole["choices"][0].pop("token_ids") == [1, 2]
    assert whole == read(chunks.text("a"))


@pytest.mark.parametrize("stop_reason", [None, "END", 7])
def test_the_last_event_of_a_choice_tells_why_it_ended(
    stop_reason: int | str | None,
) -> None:
    event = ChatChunks(make_header()).text(
        "", finish_reason="stop", stop_reason=stop_reason
    )
    assert read_chat(event).choices[0].finish_reason == "stop"
    assert read(event)["choices"][0].get("stop_reason") == stop_reason
    event = CompletionChunks(make_header()).text(
        "", finish_reason="stop", stop_reason=stop_reason
    )
    parsed = OpenAICompletion.model_validate(read(event), strict=True)
    assert parsed.choices[0].finish_reason == "stop"
    assert read(event)["choices"][0].get("stop_reason") == stop_reason


def test_prompt_token_ids_stand_where_vllm_puts_them() -> None:
    chat = read(ChatChunks(make_header()).start(prompt_token_ids=(1, 2)))
    assert chat["prompt_token_ids"] == [1, 2]
    completion = read(CompletionChunks(make_header()).text("", prompt_token_ids=[3]))
    assert completion["choices"][0]["prompt_token_ids"] == [3]


def test_events_carry_logprobs() -> None:
    token = TokenLogprob(token="a", logprob=-1.0, bytes=(97,), top_logprobs=())
    event = ChatChunks(make_header()).text("a", logprobs=ChatLogprobs(content=(token,)))
    logprobs = read_chat(event).choices[0].logprobs
    assert logprobs and logprobs.content and logprobs.content[0].token == "a"
    legacy = CompletionLogprobs(
        text_offset=(0,), token_logprobs=(-1.0,), tokens=("a",), top_logprobs=(None,)
    )
    event = CompletionChunks(make_header()).text("a", logprobs=legacy)
    choice = read(event)["choices"][0]
    assert choice["logprobs"] == msgspec.to_builtins(legacy) | {
        "text_offset": [0],
        "token_logprobs": [-1.0],
        "tokens": ["a"],
        "top_logprobs": [None],
    }


@pytest.mark.parametrize("chunks_type", [ChatChunks, CompletionChunks])
def test_usage_is_absent_null_or_counted(
    chunks_type: type[ChatChunks] | type[CompletionChunks],
) -> None:
    assert "usage" not in read(chunks_type(make_header()).text("a"))
    chunks = chunks_type(make_header(no_usage=None))
    assert read(chunks.text("a"))["usage"] is None
    assert read(chunks.text("a", finish_reason="stop"))["usage"] is None
    assert read(chunks.text("a", usage=USAGE))["usage"]["total_tokens"] == 7


def test_the_choices_of_a_chat_begin_in_their_order() -> None:
    """OpenAI's client looks up choices in a list, as it got their first events."""
    stream = SimpleNamespace(splits_tool_calls=False)
    meter = SimpleNamespace(stream=stream, prompts=[SimpleNamespace(token_ids=(1,))])
    chat = CHAT_BODY.decode(b'{"messages":[{"role":"user","content":"a"}],"n":3}')
    texts = cast(Any, None)
    events = ChatEvents(chat, make_header(), cast(Any, meter), texts)
    written = events.write(TextDelta(index=2, text="a", token_ids=(1,)))
    written += events.write(TextDelta(index=0, text="b", token_ids=(1,)))
    lines = written.decode().split("\n\n")[:-1]
    indexes = [read_chat(f"{each}\n\n".encode()).choices[0].index for each in lines]
    assert indexes == [0, 1, 2, 2, 0]


def test_a_stream_ends_with_the_usage_in_an_event_without_choices() -> None:
    header, meter = make_header(no_usage=None), SimpleNamespace(usage=USAGE)
    options = '"stream":true,"stream_options":{"include_usage":true}}'
    chat = CHAT_BODY.decode(
        b'{"messages":[{"role":"user","content":"a"}],' + options.encode()
    )
    end = ChatEvents(chat, header, cast(Any, meter), cast(Any, None)).end()
    last = read_chat(end.removesuffix(DONE))
    assert (last.choices, last.usage and last.usage.prompt_tokens) == ([], 5)

    body = COMPLETION_BODY.decode(b'{"prompt":"a",' + options.encode())
    choices = SimpleNamespace(body=body, meter=meter)
    events = CompletionEvents(header, cast(Any, choices))
    event = events.end().removesuffix(DONE)
    completion = OpenAICompletion.model_validate(read(event), strict=True)
    assert completion.choices == []
    assert completion.usage and completion.usage.completion_tokens == 2
    failed = events.fail(EngineDied())
    assert failed.endswith(DONE)
    assert read(failed.removesuffix(DONE))["error"]["code"] == 500


def test_a_stream_ends_as_clients_wait_for() -> None:
    assert DONE == b"data: [DONE]\n\n"
