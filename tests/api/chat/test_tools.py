"""Tool calls in chats: in a field of their own, as OpenAI's client reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.frontend import TextParams
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import IM_END
from trioserve.types.sampling import SamplingParams

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> "
    "<tool_call>{name, arguments}</tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)
# The same without a hint at the family.
PLAIN_TEMPLATE = TEMPLATE.replace("<tool_call>{name, arguments}</tool_call>", "")

FIRST = '{"city": "Wien", "days": 3}'
SECOND = "{}"
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {FIRST}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "stop", "arguments": {SECOND}}}\n</tool_call>'
)
TEXT = "I look it up."
ANSWER = f"{TEXT}\n{CALLS}"

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "Weather?"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 900}
CHAT_PATH = "/v1/chat/completions"

# The client (3.54) leaves generators of its HTTP library to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@asynccontextmanager
async def open_client(
    folder: Path, *, parser: str = "auto", reasoning: str = "none", **options: Any
) -> AsyncIterator[tuple[FakeServer, openai.AsyncOpenAI]]:
    options = {
        "answer": ANSWER,
        "chat_template": TEMPLATE,
        "eos_token": IM_END,
    } | options
    config = RenderConfig(
        tool_call_parser=parser, reasoning_parser=reasoning  # type: ignore[arg-type]
    )
    with trio.fail_after(30):
        async with (
            open_fake_server(
                folder, render=config, max_model_len=2048, **options
            ) as server,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ):
            yield server, client


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    return await client.chat.completions.create(model="fake", **(CHAT | fields))


async def stream_answer(
    client: openai.AsyncOpenAI, **fields: Any
) -> tuple[Any, list[Any]]:
    """Return the official client's result of a stream, and the stream's chunks."""
    chunks = []
    async with client.chat.completions.stream(
        model="fake", **(CHAT | fields)
    ) as stream:
        async for event in stream:
            if event.type == "chunk":
                chunks.append(event.chunk)
        try:
            return await stream.get_final_completion(), chunks
        except openai.LengthFinishReasonError as error:
            return error.completion, chunks


def list_calls(message: Any) -> list[tuple[str, str]]:
    return [
        (call.function.name, call.function.arguments)
        for call in message.tool_calls or []
    ]


BOTH = [("weather", FIRST), ("stop", SECOND)]


@pytest.mark.parametrize("streams", [False, True])
async def test_calls_come_in_a_field_of_their_own(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder) as (server, client):
        if streams:
            answer, _ = await stream_answer(client)
        else:
            answer = await ask(client)
        [choice] = answer.choices
        assert choice.message.content == TEXT
        assert list_calls(choice.message) == BOTH
        assert [call.type for call in choice.message.tool_calls] == ["function"] * 2
        assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_of_calls_alone_has_no_content(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder, answer=CALLS) as (_, client):
        answer = (await stream_answer(client))[0] if streams else await ask(client)
        assert answer.choices[0].message.content is None
        assert list_calls(answer.choices[0].message) == BOTH


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_without_calls_is_text(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder, answer=TEXT) as (_, client):
        answer = (await stream_answer(client))[0] if streams else await ask(client)
        assert answer.choices[0].message.content == TEXT
        assert not answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "stop"


async def test_a_streams_chunks_have_openais_form(tokenizer_folder: Path) -> None:
    async with open_client(tokenizer_folder) as (server, _):
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            body = CHAT | {"stream": True}
            async with client.stream("POST", CHAT_PATH, json=body) as response:
                lines = [line async for line in response.aiter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    choices = [json.loads(line[6:])["choices"][0] for line in lines]
    first, *deltas = [choice["delta"] for choice in choices]
    assert first == {"role": "assistant", "content": None}
    assert all(len(delta) <= 1 for delta in deltas)
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    begun = [piece for piece in pieces if "id" in piece]
    assert [(each["index"], each["type"]) for each in begun] == [
        (0, "function"),
        (1, "function"),
    ]
    for piece in pieces:
        is_first = piece in begun
        assert piece.keys() == (
            {"index", "id", "type", "function"} if is_first else {"index", "function"}
        )
        assert piece["function"].keys() == (
            {"name", "arguments"} if is_first else {"arguments"}
        )
    # The arguments of the first call arrive while they are written.
    assert len([piece for piece in pieces if piece["index"] == 0]) > 5
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


@pytest.mark.parametrize("streams", [False, True])
async def test_each_of_n_answers_has_calls_with_ids_of_their_own(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder) as (_, client):
        answer = (
            (await stream_answer(client, n=3))[0] if streams else await ask(client, n=3)
        )
        assert len(answer.choices) == 3
        ids = set()
        for choice in answer.choices:
            assert choice.message.content == TEXT
            assert list_calls(choice.message) == BOTH
            assert choice.finish_reason == "tool_calls"
            ids |= {call.id for call in choice.message.tool_calls}
        assert len(ids) == 6


@pytest.mark.parametrize("streams", [False, True])
async def test_forbidden_parallel_calls_end_the_answer_behind_the_first(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder, eos_token=None) as (server, client):
        fields: dict[str, Any] = {"parallel_tool_calls": False}
        answer = (
            (await stream_answer(client, **fields))[0]
            if streams
            else await ask(client, **fields)
        )
        [choice] = answer.choices
        assert choice.message.content == TEXT
        assert list_calls(choice.message) == BOTH[:1]
        assert choice.finish_reason == "tool_calls"
        if not streams:
            assert answer.usage.completion_tokens < len(server.answer_ids)
        # The sequence has ended in the engine, too, and not at max_tokens.
        assert len(server.device.plans) < len(server.answer_ids) + 10


async def test_a_slow_reader_gets_one_call_as_well(tokenizer_folder: Path) -> None:
    """The engine joins tokens for a slow reader, here a whole answer in one delta."""
    async with open_client(tokenizer_folder, eos_token=None) as (server, client):
        engine = server.state.engine
        whole = await ask(client, parallel_tool_calls=False)
        prompt = await engine.renderer.render_chat(MESSAGES)
        num_steps = len(server.device.plans) + len(server.answer_ids)
        async with engine.open_text(
            [prompt],
            SamplingParams(max_tokens=len(server.answer_ids)),
            TextParams(parallel_tool_calls=False),
            tools=TOOLS,
        ) as stream:
            while len(server.device.plans) < num_steps:
                await trio.sleep(0.001)
            [joined] = await stream.collect()
        assert [call.name for call in joined.tool_calls] == ["weather"]
        assert joined.finish_reason == "stop"
        assert len(joined.token_ids) == whole.usage.completion_tokens


async def test_an_answer_that_ends_in_a_call_has_its_length_as_the_reason(
    tokenizer_folder: Path,
) -> None:
    async with open_client(tokenizer_folder) as (server, client):
        spell = server.state.engine.renderer.token_bytes
        text, num_tokens = b"", 0
        while b"Wien" not in text:
            text += spell(server.answer_ids[num_tokens])
            num_tokens += 1
        answer = await ask(client, max_tokens=num_tokens)
        [choice] = answer.choices
        assert choice.finish_reason == "length"
        [(name, arguments)] = list_calls(choice.message)
        assert name == "weather"
        assert FIRST.startswith(arguments) and "Wi" in arguments


async def test_an_answer_is_cut_off_alike_in_a_stream_and_without(
    tokenizer_folder: Path,
) -> None:
    async with open_client(tokenizer_folder) as (server, client):
        length = len(server.answer_ids)
        for num_tokens in range(1, length, length // 8):
            whole = await ask(client, max_tokens=num_tokens)
            streamed, _ = await stream_answer(client, max_tokens=num_tokens)
            [choice], [other] = whole.choices, streamed.choices
            assert choice.finish_reason == other.finish_reason == "length"
            assert choice.message.content == other.message.content
            assert list_calls(choice.message) == list_calls(other.message)
            # The beginning of a tag may be text, and what follows it may not.
            assert "<tool_call>" not in (choice.message.content or "")
            response = await client.responses.create(
                model="fake",
                input=MESSAGES,
                tools=[{"type": "function", **tool["function"]} for tool in TOOLS],
                max_output_tokens=num_tokens,
            )
            assert response.output_text == (choice.message.content or "")
            assert [
                (item.name, item.arguments)
                for item in response.output
                if item.type == "function_call"
            ] == list_calls(choice.message)


async def test_a_call_that_was_cut_off_may_be_sent_back(
    tokenizer_folder: Path,
) -> None:
    async with open_client(
        tokenizer_folder, answer=ANSWER[: ANSWER.index("Wi") + 2]
    ) as (
        server,
        client,
    ):
        cut = (await ask(client, max_tokens=len(server.answer_ids))).choices[0].message
        [call] = cut.tool_calls
        assert not call.function.arguments.endswith("}")
        result = {"role": "tool", "tool_call_id": call.id, "content": "not JSON"}
        messages = [*MESSAGES, cut.model_dump(exclude_none=True), result]
        answer = await ask(client, messages=messages, max_tokens=1)
        assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("streams", [False, True])
async def test_reasoning_and_calls_come_in_one_answer(
    tokenizer_folder: Path, streams: bool
) -> None:
    answer_text = f"<think>\nA <tool_call> helps.\n</think>\n\n{ANSWER}"
    async with open_client(tokenizer_folder, answer=answer_text, reasoning="qwen3") as (
        _,
        client,
    ):
        if streams:
            answer, chunks = await stream_answer(client)
            deltas = [chunk.choices[0].delta for chunk in chunks]
            reasoning = "".join(getattr(d, "reasoning", None) or "" for d in deltas)
        else:
            answer = await ask(client)
            reasoning = answer.choices[0].message.reasoning
        assert reasoning == "A <tool_call> helps."
        assert answer.choices[0].message.content == TEXT
        assert list_calls(answer.choices[0].message) == BOTH


HARMONY_TEMPLATE = TEMPLATE + "{# <|channel|> <|message|> functions. #}"
HARMONY = (
    "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant<|channel|>commentary"
    f"<|message|>{TEXT}<|end|><|start|>assistant<|channel|>commentary "
    f"to=functions.weather <|constrain|>json<|message|>{FIRST}"
)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("has_tools", [False, True])
async def test_the_channels_of_gpt_oss_are_split_without_an_option(
    tokenizer_folder: Path, streams: bool, has_tools: bool
) -> None:
    template = HARMONY_TEMPLATE.replace("<tool_call>", "")
    fields: dict[str, Any] = {} if has_tools else {"tools": openai.NOT_GIVEN}
    async with open_client(
        tokenizer_folder, answer=HARMONY, chat_template=template
    ) as (_, client):
        if streams:
            answer, chunks = await stream_answer(client, **fields)
            deltas = [chunk.choices[0].delta for chunk in chunks]
            reasoning = "".join(getattr(d, "reasoning", None) or "" for d in deltas)
        else:
            answer = await ask(client, **fields)
            reasoning = answer.choices[0].message.reasoning
            details = answer.usage.completion_tokens_details
            assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
        assert reasoning == "Where?"
        message = answer.choices[0].message
        assert message.content == (TEXT if has_tools else f"{TEXT}\n{FIRST}")
        assert list_calls(message) == (BOTH[:1] if has_tools else [])


async def test_a_form_of_gpt_oss_is_that_of_its_final_message(
    tokenizer_folder: Path,
) -> None:
    async with open_client(
        tokenizer_folder, chat_template=HARMONY_TEMPLATE, answer=HARMONY
    ) as (server, client):
        form: Any = {"type": "json_object"}
        await ask(client, response_format=form)
        await client.completions.create(
            model="fake", prompt="a", extra_body={"response_format": form}
        )
        grammars = [
            start.sampling.grammar.text
            for plan in server.device.plans
            for start in plan.starts
            if start.sampling.grammar is not None
        ]
        assert ["final" in grammar for grammar in grammars] == [True, False]


async def test_the_thoughts_of_gpt_oss_have_no_budget(tokenizer_folder: Path) -> None:
    async with open_client(tokenizer_folder, chat_template=HARMONY_TEMPLATE) as (
        _,
        client,
    ):
        with pytest.raises(openai.BadRequestError, match="reasoning_effort") as caught:
            await ask(client, extra_body={"thinking_token_budget": 5})
        assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_string_in_the_arguments_ends_the_call(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder) as (_, client):
        answer = (
            (await stream_answer(client, stop="Wien"))[0]
            if streams
            else await ask(client, stop="Wien")
        )
        [choice] = answer.choices
        assert list_calls(choice.message) == [("weather", '{"city": "')]
        assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}],
    ids=["hidden", "missing"],
)
async def test_without_tools_a_call_is_text(
    tokenizer_folder: Path, fields: dict[str, Any]
) -> None:
    async with open_client(tokenizer_folder) as (_, client):
        answer = await ask(client, **fields)
        assert answer.choices[0].message.content == ANSWER
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("parser", "template", "is_parsed"),
    [
        ("auto", TEMPLATE, True),
        ("auto", PLAIN_TEMPLATE, False),
        ("none", TEMPLATE, False),
        ("hermes", PLAIN_TEMPLATE, True),
        ("mistral", TEMPLATE, False),
    ],
)
async def test_the_template_or_the_option_chooses_the_parser(
    tokenizer_folder: Path, parser: str, template: str, is_parsed: bool
) -> None:
    async with open_client(tokenizer_folder, parser=parser, chat_template=template) as (
        _,
        client,
    ):
        message = (await ask(client)).choices[0].message
        assert message.content == (TEXT if is_parsed else ANSWER)
        assert list_calls(message) == (BOTH if is_parsed else [])


async def test_parallel_calls_cannot_be_forbidden_without_a_parser(
    tokenizer_folder: Path,
) -> None:
    async with open_client(tokenizer_folder, parser="none") as (server, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, parallel_tool_calls=False)
        assert caught.value.param == "parallel_tool_calls"
        assert "--tool-call-parser" in str(caught.value)
        assert not server.device.plans


async def test_a_result_goes_back_to_the_model(tokenizer_folder: Path) -> None:
    """The whole round: a call, its result, and the answer."""
    async with open_client(tokenizer_folder, answer=CALLS) as (server, client):
        message = (await ask(client)).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
            for number, call in enumerate(message.tool_calls)
        ]
        messages = [*MESSAGES, message, *results]
        await ask(client, messages=messages)
        prompt = await server.state.engine.renderer.render_chat(
            [*MESSAGES, message.model_dump(exclude_none=True), *results]
        )
        assert prompt.text == (
            '[user:Weather?][assistant:<weather {"city": "Wien", "days": 3}><stop {}>]'
            "[tool:result 0][tool:result 1]"
        )


async def test_token_ids_and_logprobs_stay_complete(tokenizer_folder: Path) -> None:
    async with open_client(tokenizer_folder) as (server, client):
        _, chunks = await stream_answer(client, extra_body={"return_token_ids": True})
        ids = [
            token_id
            for chunk in chunks
            for token_id in getattr(chunk.choices[0], "token_ids", None) or ()
        ]
        assert tuple(ids[:-1]) == server.answer_ids


NAMED: Any = {"type": "function", "function": {"name": "stop"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [NAMED]},
}


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "stop"}), (NAMED, {"stop"}), (ALLOWED, {"stop"})],
)
async def test_a_forced_call_reaches_the_device_as_a_grammar(
    tokenizer_folder: Path, choice: Any, names: set[str]
) -> None:
    async with open_client(tokenizer_folder) as (server, client):
        await ask(client, tool_choice=choice)
        grammar = server.device.plans[0].starts[0].sampling.grammar
        assert grammar is not None
        assert {name for name in ("weather", "stop") if name in grammar.text} == names


async def test_the_model_does_not_see_tools_that_are_not_allowed(
    tokenizer_folder: Path,
) -> None:
    allowed = {"mode": "auto", "tools": [NAMED]}
    async with open_client(tokenizer_folder) as (server, client):
        answer = await ask(
            client, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
        )
        assert list_calls(answer.choices[0].message) == BOTH
        start = server.device.plans[0].starts[0]
        assert start.sampling.grammar is None
        text = await server.state.engine.renderer.detokenize(start.prompt_token_ids)
        assert '"stop"' in text and '"weather"' not in text


async def test_a_form_of_the_text_leaves_forced_calls_as_they_are(
    tokenizer_folder: Path,
) -> None:
    """Some clients send both, for the case that there is text."""
    async with open_client(tokenizer_folder) as (server, client):
        for form in ({}, {"response_format": {"type": "json_object"}}):
            answer = await ask(client, tool_choice="required", **form)
            assert list_calls(answer.choices[0].message) == BOTH
        plain, with_form = (
            start.sampling.grammar
            for plan in server.device.plans
            for start in plan.starts
        )
        assert plain is not None
        assert plain == with_form


JSON: Any = {"type": "json_object"}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_with_a_form_may_call_instead(
    tokenizer_folder: Path, streams: bool
) -> None:
    async with open_client(tokenizer_folder, answer=CALLS) as (server, client):
        if streams:
            answer, _ = await stream_answer(client, response_format=JSON)
        else:
            answer = await ask(client, response_format=JSON)
        assert list_calls(answer.choices[0].message) == BOTH
        assert not answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "tool_calls"
        grammar = server.device.plans[0].starts[0].sampling.grammar
        assert grammar is not None
        assert "tool_call" in grammar.text and "weather" in grammar.text


async def test_an_answer_with_a_form_may_have_calls_in_its_strings(
    tokenizer_folder: Path,
) -> None:
    text = json.dumps({"note": CALLS})
    async with open_client(tokenizer_folder, answer=text) as (_, client):
        answer = await ask(client, response_format=JSON)
        assert answer.choices[0].message.content == text
        assert not answer.choices[0].message.tool_calls


@pytest.mark.parametrize(
    ("parser", "form"),
    [
        ("llama3_json", {"response_format": JSON}),
        ("glm4", {"response_format": JSON}),
        ("none", {"response_format": JSON}),
        ("hermes", {"structured_outputs": {"regex": ".*"}}),
    ],
)
async def test_other_answers_with_a_form_have_no_calls(
    tokenizer_folder: Path, parser: str, form: dict[str, Any]
) -> None:
    async with open_client(tokenizer_folder, parser=parser) as (server, client):
        answer = await ask(client, extra_body=form)
        assert not answer.choices[0].message.tool_calls
        grammar = server.device.plans[0].starts[0].sampling.grammar
        assert grammar is not None
        assert "weather" not in grammar.text


async def test_a_tool_that_no_grammar_can_have_is_refused_beside_a_form(
    tokenizer_folder: Path,
) -> None:
    schema = {"type": "object", "not": {}}
    function = {"name": "f", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}]
    async with open_client(tokenizer_folder) as (server, client):
        with pytest.raises(openai.BadRequestError, match="not") as caught:
            await ask(client, tools=tools, response_format=JSON)
        assert caught.value.param == "tools[0].function.parameters"
        assert not server.device.plans
        # A tool that is not strict does not bind the arguments, as without a form.
        function["strict"] = False
        await ask(client, tools=tools, response_format=JSON)


@pytest.mark.parametrize(
    ("parser", "fields", "reason"),
    [
        ("none", {}, "--tool-call-parser"),
        ("qwen3_coder", {}, "calls in the form of qwen3_coder cannot be forced"),
    ],
)
async def test_calls_that_cannot_be_forced_are_refused(
    tokenizer_folder: Path, parser: str, fields: dict[str, Any], reason: str
) -> None:
    async with open_client(tokenizer_folder, parser=parser) as (server, client):
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await ask(client, tool_choice="required", **fields)
        assert caught.value.param == "tool_choice"
        assert not server.device.plans


async def test_two_tools_of_one_name_cannot_be_forced(tokenizer_folder: Path) -> None:
    twice = [TOOLS[0], TOOLS[0]]
    async with open_client(tokenizer_folder) as (server, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, tool_choice="required", tools=twice)
        assert caught.value.param == "tools[1].function.name"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(
                model="fake",
                input="hi",
                tool_choice="required",
                tools=[{"type": "function", **each["function"]} for each in twice],
            )
        assert caught.value.param == "tools[1].name"
        assert not server.device.plans
        await ask(client, tools=twice)
